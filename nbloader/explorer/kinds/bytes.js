// Bytes: their beginning.

export function draw(el, field, { make }) {
  if (field.text) make("pre", "nbx-text", el, field.text);
  else make("div", "", el, field.summary);
}
