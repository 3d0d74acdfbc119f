// A sampling rate.

export function draw(el, field, { make }) {
  make("div", "", el, field.summary);
}
