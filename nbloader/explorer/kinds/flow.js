// Optical flow: directions as hues.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { picture }) {
  picture(el, field.picture);
}
