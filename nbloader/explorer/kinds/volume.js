// One slice of a stack of pictures, and a slider for the others.

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { make, picture, choose }) {
  picture(el, field.picture);
  const { slices, slice } = field.data;
  if (slices < 2) return;
  const slider = make("input", "nbx-slider", el);
  Object.assign(slider, { type: "range", min: 0, max: slices - 1, value: slice });
  slider.setAttribute("aria-label", `slice of ${field.path || "the sample"}`);
  slider.addEventListener("change", () => choose(Number(slider.value)));
}
