// A string.

export function words(el, field, { make }) {
  make("div", "nbx-words", el, field.text || field.summary);
}

export function draw(el, field, { make }) {
  if (field.text) make("pre", "nbx-text", el, field.text);
}
