// A picture.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { picture }) {
  picture(el, field.picture);
}
