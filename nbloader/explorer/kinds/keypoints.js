// Key points over the picture to which they belong.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { make, picture }) {
  make("div", "", el, field.summary);
  picture(el, field.picture);
}
