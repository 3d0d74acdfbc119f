// Bokeh's plots over time, and the histogram.

const KEPT = 1200;  // points per plot
const DRAW_EVERY = 500;  // ms from one drawing of the plots to the next: they are what costs a page most

class Charts {
  constructor(section, model, bokeh) {
    Object.assign(this, { section, model, bokeh });
    this.loading = make("p", "nbl-label", section.body, "The plots are being loaded…");
    this.node = make("div", "nbl-charts", section.body);
    this.plots = [];
    this.keys = [];
    this.waiting = [];  // points that came since the plots were drawn
    this.timer = null;
  }
  async build({ charts, seconds, atLeast }, points) {
    if (this.charts) return;
    Object.assign(this, { charts, seconds, atLeast });
    this.slots = charts.map((chart) => {
      const figure = make("figure", "nbl-chart", this.node);
      const caption = make("figcaption", "", figure, chart.title);
      const keys = make("div", "nbl-keys", caption);
      make("span", "", keys, chart.unit);
      chart.choices = [];
      chart.series.forEach(({ label, color, stage }, i) => {
        const key = chart.oneOf ? button(keys, label, `Show ${label} a second`, () => this.choose(chart, i))
          : make("span", "nbl-key", keys, label);
        if (chart.oneOf) chart.choices.push(key);
        key.style.setProperty("--nbl-key", color);
        if (stage) this.keys.push({ key, label, stage });
      });
      const slot = make("div", "nbl-plot", figure);
      slot.setAttribute("role", "img");
      slot.setAttribute("aria-label", `${chart.title}, ${chart.unit}, over time`);
      return slot;
    });
    this.bars = new Bars(make("figure", "nbl-chart", this.node));
    this.first = points;
    const Bokeh = await this.bokeh();
    for (const [i, chart] of charts.entries()) {
      const item = { ...chart.item, target_id: null };
      const [view] = await Bokeh.embed.embed_item(item, this.slots[i]);
      this.plots.push({ view, plot: view.model, source: view.model.document.get_model_by_name("source") });
      if (chart.oneOf) this.choose(chart, 0);
    }
    this.loading.remove();
    this.theme();
    this.drawn = true;
    this.feed(points, true);
    this.flush();
    if (this.view) this.update(this.view, null);
  }
  choose(chart, chosen) {
    const { plot } = this.plots[this.charts.indexOf(chart)] ?? {};
    chart.choices.forEach((node, i) => node.setAttribute("aria-pressed", String(i === chosen)));
    for (const renderer of plot?.renderers ?? []) {
      if (renderer.name?.startsWith("only ")) renderer.visible = renderer.name === `only ${chosen}`;
    }
  }
  theme() {
    const style = getComputedStyle(this.node.closest(".nbl"));
    const ink = style.getPropertyValue("--nbl-ink2").trim();
    const line = style.getPropertyValue("--nbl-line").trim();
    for (const { plot } of this.plots) {
      for (const axis of [...plot.below, ...plot.left]) axis.major_label_text_color = ink;
      for (const part of plot.center) if ("grid_line_color" in part && part.dimension === 1) part.grid_line_color = line;
    }
  }
  update(view, points, full) {
    this.view = view;
    if (!this.charts) return;
    if (points) {
      if (full) [this.waiting, this.afresh] = [[], true];
      this.waiting.push(points);
      this.waiting.splice(0, this.waiting.length - KEPT);
    }
    if (!this.section.open) return;
    this.timer ??= setTimeout(() => this.flush(), DRAW_EVERY);
    for (const { key, label, stage } of this.keys) {
      const [median, spread] = view.stages[stage] ?? ["", ""];
      write(key, median ? `${label} ${median}` : label);
      key.title = spread;
    }
    this.bars.update(view.makeTimes);
  }
  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!this.drawn || !this.section.open || !this.waiting.length) return;
    const [first, ...rest] = this.waiting.splice(0);
    for (const points of rest) for (const name of Object.keys(first)) first[name].push(...points[name]);
    this.feed(first, this.afresh);
    this.afresh = false;
  }
  feed(points, full) {
    const last = points.time.at(-1);
    if (last !== undefined) this.end = last;
    if (full && points.time.length) this.begin = points.time[0];
    const start = Math.max(this.begin ?? 0, (this.end ?? 0) - this.seconds);
    for (const { plot, source } of this.plots) {
      plot.x_range.setv({ start, end: Math.max(this.end ?? 0, start + this.atLeast) });
      const columns = Object.fromEntries(Object.keys(source.data).map((name) => [name, points[name]]));
      if (full) source.data = columns;
      else if (points.time.length) source.stream(columns, KEPT);
    }
  }
  remove() {
    clearTimeout(this.timer);
    for (const { view } of this.plots) view.remove();
  }
}

// How long batches took to make.
class Bars {
  constructor(figure) {
    const caption = make("figcaption", "", figure, "Time to make a batch");
    make("span", "", make("div", "nbl-keys", caption), "how many of the last 500 batches took so many ms");
    this.plot = make("div", "nbl-plot nbl-bars", figure);
    this.plot.setAttribute("role", "img");
  }
  update({ edges, counts }) {
    const said = JSON.stringify(counts);
    if (said === this.said) return;
    this.said = said;
    const most = Math.max(1, ...counts);
    const every = Math.ceil(edges.length / 7);
    this.plot.replaceChildren();
    counts.forEach((count, i) => {
      const bar = make("div", "", this.plot);
      bar.title = `${edges[i]} to ${edges[i + 1]} ms: ${count}`;
      make("i", "", bar).style.height = `${count ? Math.max(2, (86 * count) / most) : 0}px`;
      make("span", "", bar, i % every ? "" : edges[i]);
    });
    this.plot.setAttribute("aria-label", counts.length
      ? `Time to make a batch, from ${edges[0]} to ${edges.at(-1)} ms, most often ${edges[counts.indexOf(most)]} ms` : "no batch yet");
  }
}
