// Plots over time, drawn by Bokeh, and the histogram of production times. plots.py describes them: it sends the Bokeh
// documents once, then points, axes and legends.

const KEPT = 1200;  // points per plot
const DRAW_EVERY = 500;  // ms between two drawings: they are what costs a page most

class Plots {
  constructor(el, api) {
    Object.assign(this, { el, api });
    this.loading = api.make("p", "nbl-label", el, "Loading the plots…");
    this.node = api.make("div", "nbl-charts", el);
    this.charts = [];  // { name, choices, chosen, legend, view, plot, source }
    this.history = [];  // columns of all points
    this.waiting = [];  // columns of points that are not drawn yet
    this.state = "folded";  // -> "requested" -> "drawn"
    this.timer = null;
  }
  update(data, { entries, reset }) {
    this.data = data;
    if (reset) this.history = [];
    this.history.push(...entries);
    this.history.splice(0, this.history.length - KEPT);
    if (reset) [this.waiting, this.redraw] = [[...entries], true];
    else this.waiting.push(...entries);
    if (!this.api.unfolded()) return;
    if (this.state === "folded") {
      this.state = "requested";
      this.api.request("figures");
    }
    if (this.state !== "drawn") return;
    this.timer ??= setTimeout(() => this.flush(), DRAW_EVERY);
    this.drawLegends();
    this.drawBars();
  }
  async receive({ charts, histogram }) {
    if (this.state !== "requested") return;
    this.state = "building";
    for (const chart of charts) this.addChart(chart);
    this.addBars(histogram);
    const Bokeh = await this.api.bokeh();
    for (const [i, { item }] of charts.entries()) {
      const chart = this.charts[i];
      const [view] = await Bokeh.embed.embed_item({ ...item, target_id: null }, chart.slot);
      Object.assign(chart, { view, plot: view.model, source: view.model.document.get_model_by_name("source") });
      if (chart.choices.length) this.choose(chart, 0);
    }
    this.loading.remove();
    this.state = "drawn";
    this.retheme();
    [this.waiting, this.redraw] = [[...this.history], true];
    this.flush();
    this.drawLegends();
    this.drawBars();
  }
  figure(title, unit) {
    const { make } = this.api;
    const figure = make("figure", "nbl-chart", this.node);
    const caption = make("figcaption", "", figure, title);
    const keys = make("div", "nbl-keys", caption);
    make("span", "", keys, unit);
    const slot = make("div", "nbl-plot", figure);
    slot.setAttribute("role", "img");
    slot.setAttribute("aria-label", `${title}, ${unit}`);
    return { keys, slot };
  }
  addChart({ name, title, unit, oneOf, series }) {
    const { make, button } = this.api;
    const { keys, slot } = this.figure(title, unit);
    const chart = { name, slot, choices: [], chosen: 0, legend: [] };
    series.forEach(({ label, color, stage, optional }, i) => {
      const key = oneOf ? button(keys, label, `Show ${label} ${unit}`, () => this.choose(chart, i))
        : make("span", "nbl-key", keys, label);
      if (oneOf) chart.choices.push(key);
      key.style.setProperty("--nbl-key", color);
      if (stage) chart.legend.push({ key, label, stage, optional });
    });
    this.charts.push(chart);
  }
  choose(chart, chosen) {
    chart.chosen = chosen;
    chart.choices.forEach((node, i) => node.setAttribute("aria-pressed", String(i === chosen)));
    for (const renderer of chart.plot?.renderers ?? []) {
      if (renderer.name?.startsWith("only ")) renderer.visible = renderer.name === `only ${chosen}`;
    }
    this.setAxes(chart);
  }
  retheme() {
    const style = getComputedStyle(this.el);
    const ink = style.getPropertyValue("--nbl-ink2").trim();
    const line = style.getPropertyValue("--nbl-line").trim();
    for (const { plot } of this.charts) {
      for (const axis of [...plot?.below ?? [], ...plot?.left ?? []]) axis.major_label_text_color = ink;
      for (const part of plot?.center ?? []) if ("grid_line_color" in part && part.dimension === 1) part.grid_line_color = line;
    }
  }
  setAxes({ name, plot, chosen }) {
    const axes = this.data.y[name];
    if (!plot || !axes) return;
    const [start, end] = this.data.x, [bottom, top] = axes[chosen] ?? axes[0];
    plot.x_range.setv({ start, end });
    plot.y_range.setv({ start: bottom, end: top });
  }
  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.state !== "drawn" || !this.api.unfolded()) return;
    const [first, ...rest] = this.waiting.splice(0);
    const columns = first && Object.fromEntries(Object.keys(first).map((name) => [name, [first, ...rest].flatMap((chunk) => chunk[name])]));
    for (const chart of this.charts) {
      this.setAxes(chart);
      // Recordings of earlier versions lack columns of later ones.
      const column = (name) => columns[name] ?? columns.time.map(() => (name.startsWith("tip_") ? "" : 0));
      const own = columns && Object.fromEntries(Object.keys(chart.source.data).map((name) => [name, column(name)]));
      if (own && this.redraw) chart.source.data = own;
      else if (own) chart.source.stream(own, KEPT);
    }
    if (columns) this.redraw = false;
  }
  drawLegends() {
    for (const { key, label, stage, optional } of this.charts.flatMap(({ legend }) => legend)) {
      const { median, tip } = this.data.legend[stage] ?? {};
      key.hidden = Boolean(optional) && !median;
      this.api.write(key, median ? `${label} ${median}` : label);
      key.title = tip ?? "";
    }
  }
  addBars({ title, unit }) {
    this.bars = this.figure(title, unit).slot;
    this.bars.classList.add("nbl-bars");
  }
  drawBars() {
    const said = JSON.stringify(this.data.bars);
    if (said === this.barsDrawn) return;
    this.barsDrawn = said;
    const { make } = this.api;
    const highest = Math.max(1, ...this.data.bars.map(({ count }) => count));
    this.bars.replaceChildren();
    if (!this.data.bars.length) make("span", "nbl-label", this.bars, "no batches yet");
    for (const { label, count, tip } of this.data.bars) {
      const bar = make("div", "", this.bars);
      bar.title = tip;
      make("i", "", bar).style.height = `${count ? Math.max(2, (86 * count) / highest) : 0}px`;
      make("span", "", bar, label);
    }
  }
  remove() {
    clearTimeout(this.timer);
    for (const { view } of this.charts) view?.remove();
  }
}

export function create(el, api) {
  return new Plots(el, api);
}
