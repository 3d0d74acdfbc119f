// A signal: the envelopes of its channels, one below the other.

export function cover(el, field, { make, wave }) {
  const box = make("div", "nbx-waves", el);
  for (const points of field.data.waves) wave(box, points);
}

export function draw(el, field, { make, wave }) {
  if (!field.drawn) {
    make("div", "", el, field.summary);
    return;
  }
  const box = make("div", "nbx-signal nbx-waves", el);
  if (field.data.waves.length > 2) box.style.height = `${40 * field.data.waves.length}px`;
  for (const points of field.data.waves) wave(box, points);
}
