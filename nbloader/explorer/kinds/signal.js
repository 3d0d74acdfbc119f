// A signal: its envelope.

export function cover(el, field, { wave }) {
  wave(el, field.data.points);
}

export function draw(el, field, { make, wave }) {
  if (field.drawn) wave(make("div", "nbx-signal", el), field.data.points);
}
