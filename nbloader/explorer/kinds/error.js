// A value that raises when it is described.

export function words(el, field, { make }) {
  make("div", "nbx-error", el, field.summary);
}

export function draw(el, field, { make }) {
  make("div", "nbx-error", el, field.summary);
  if (field.text) make("pre", "nbx-text", el, field.text);
}
