// The labels of a picture's pixels in colors: alone, or over the picture.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { picture }) {
  picture(el, field.picture);
}
