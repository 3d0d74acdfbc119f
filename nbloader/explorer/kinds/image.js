// A picture, and the window of its values if there are several.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { annotated, choice }) {
  annotated(el);
  if (field.data?.windows) choice(el, `window of ${field.path || "the sample"}`, field.data.windows, field.data.window, "window");
}
