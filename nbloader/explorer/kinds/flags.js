// Flags: a strip of cells, each as opaque as the share of its flags that are set.

function strip(el, field, svg) {
  const { cells } = field.data;
  const picture = svg("svg", el, { class: "nbx-flags", viewBox: `0 0 ${cells.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" });
  cells.forEach((share, x) => { if (share) svg("rect", picture, { x, width: 1, height: 1, "fill-opacity": share }); });
}

export function cover(el, field, { svg }) {
  strip(el, field, svg);
}

export function draw(el, field, { make, svg }) {
  make("div", "", el, field.summary);
  strip(el, field, svg);
}
