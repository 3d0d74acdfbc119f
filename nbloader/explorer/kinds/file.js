// The path of a file, and what it holds: a picture, or a player for a sound or a video.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { make, annotated, url }) {
  make("div", "", el, field.text);
  annotated(el);
  const { file, mime, family } = field.data ?? {};
  if (file === undefined) return;
  const player = make(family === "video" ? "video" : "audio", "", el);
  player.controls = true;
  player.src = url(file, mime);
}
