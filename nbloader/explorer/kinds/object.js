// Any object: its repr.

export function draw(el, field, { make }) {
  if (field.text) make("pre", "nbx-text", el, field.text);
  else make("div", "", el, field.summary);
}
