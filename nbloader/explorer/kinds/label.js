// The name of a class, and its number.

export function draw(el, field, { make }) {
  make("div", "", el, field.summary);
}
