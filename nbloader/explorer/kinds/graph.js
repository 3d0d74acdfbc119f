// A graph: nodes and edges.

const COLORS = ["#3b8fd6", "#e08a1e", "#1a9e77", "#d1573a", "#8a66e8", "#c76bb0", "#a8a03c", "#7cc4ee"];

function drawing(el, field, svg, title) {
  const { places, edges, classes } = field.data;
  const picture = svg("svg", el, { class: "nbx-graph", viewBox: "-0.06 -0.06 1.12 1.12", role: "img", "aria-label": `${title}: ${field.summary}` });
  for (const [from, to] of edges) {
    svg("line", picture, { x1: places[from][0], y1: places[from][1], x2: places[to][0], y2: places[to][1] });
  }
  const radius = Math.max(0.008, Math.min(0.03, 0.16 / Math.sqrt(places.length)));
  places.forEach(([x, y], at) => {
    const node = svg("circle", picture, { cx: x, cy: y, r: radius, fill: COLORS[Math.abs(classes[at]) % COLORS.length] });
    svg("title", node, {}).textContent = `node ${at}, class ${classes[at]}`;
  });
}

export function cover(el, field, { svg, title }) {
  drawing(el, field, svg, title);
}

export function draw(el, field, { make, svg, title }) {
  make("div", "", el, field.summary);
  if (field.drawn) drawing(make("div", "nbx-graph-box", el), field, svg, title);
}
