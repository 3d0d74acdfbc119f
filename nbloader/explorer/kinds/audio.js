// A sound: its envelope, and a player.

export function cover(el, field, { wave }) {
  wave(el, field.data.points);
}

export function draw(el, field, { make, wave, url }) {
  make("div", "", el, field.summary);
  if (field.drawn) wave(make("div", "nbx-signal", el), field.data.points);
  const player = make("audio", "", el);
  player.controls = true;
  player.src = url(field.data.sound, "audio/wav");
}
