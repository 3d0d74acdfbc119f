// An encoded sound or video: a player of the browser.

export function draw(el, field, { make, url }) {
  make("div", "", el, field.summary);
  const { file, mime, family } = field.data ?? {};
  if (file === undefined) return;
  const player = make(family === "video" ? "video" : "audio", "", el);
  player.controls = true;
  player.src = url(file, mime);
}
