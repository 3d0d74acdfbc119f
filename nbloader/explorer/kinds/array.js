// An array: its elements, if they are few or not numbers, else its shape.

export function draw(el, field, { make }) {
  if (field.text) make("pre", "nbx-text", el, field.text);
  else make("div", "", el, field.summary);
}
