// A container: the number of its parts, which follow as fields.

export function draw(el, field, { make }) {
  make("div", "", el, field.summary);
}
