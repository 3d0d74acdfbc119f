// The parts of the view that are made of words and of Bokeh's plots.

const KEPT = 1200;  // points per plot
const LINES = 300;

class Head {
  constructor(root, command) {
    this.verdict = make("p", "nbl-verdict", root);
    this.verdict.setAttribute("aria-live", "polite");
    const line = make("div", "nbl-progress", root);
    this.state = make("span", "nbl-chip", line);
    this.bar = make("div", "nbl-bar", line);
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-label", "Progress of the epoch");
    this.fill = make("span", "", this.bar);
    this.progress = make("span", "", line);
    this.tiles = make("div", "nbl-tiles", root);
    this.controls = new Controls(root, command);
    this.written = 0;
  }
  update(view) {
    // Its numbers change at every tick: people, and screen readers, get a new sentence every two seconds.
    const news = [view.state, view.cause, ...view.workers.map((w) => w.state === "stuck")].join();
    if (Date.now() - this.written > 2000 || news !== this.news) {
      write(this.verdict, view.verdict);
      this.written = Date.now();
      this.news = news;
    }
    write(this.state, view.state);
    const { share, text } = view.progress;
    this.fill.style.width = `${100 * (share ?? 0)}%`;
    if (share === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    write(this.progress, text);
    view.tiles.forEach((tile, i) => this.tile(i, tile));
    this.controls.update(view);
  }
  tile(i, { label, value, unit, note }) {
    let node = this.tiles.children[i];
    if (!node) {
      node = make("div", "nbl-tile", this.tiles);
      for (const name of ["nbl-label", "nbl-value", "nbl-note"]) make("div", name, node);
      make("span", "", node.children[1]);
      make("span", "nbl-unit", node.children[1]);
    }
    write(node.children[0], label);
    write(node.children[1].children[0], value);
    write(node.children[1].children[1], unit && ` ${unit}`);
    write(node.children[2], note);
    node.title = note;
  }
}

class Controls {
  constructor(root, command) {
    this.command = command;
    const line = make("div", "nbl-controls", root);
    const actions = make("div", "nbl-actions", line);
    this.view = null;
    this.pause = new Pending(button(actions, "Pause", "Pause the loader", () => {
      const was = this.view.state === "paused";
      this.pause.begin(was ? "resuming…" : "pausing…", (view) => (view.state === "paused") !== was);
      command(was ? "resume" : "pause");
    }), "Pause");
    this.step = button(actions, "Step", "Let one batch go to the loop, and pause", () => command("step"));
    this.restart = new Pending(button(actions, "Restart all", "Restart all workers", () => {
      const before = new Map(this.view.workers.map((w) => [w.id, w.incarnation]));
      this.restart.begin("restarting…", (view) => view.workers.every((w) => before.get(w.id) !== w.incarnation));
      command("restart");
    }), "Restart all");
    button(actions, "Save trace", "Save a trace of the last batches for Perfetto", () => command("trace"));
    this.sliders = make("div", "nbl-sliders", line);
    this.workers = this.slider("Workers", "Number of workers", 1, (value) => command("resize", null, value));
    this.prefetch = this.slider("Prefetch", "Batches asked for ahead, per worker", 0,
      (value) => command("prefetch", null, value));
    this.said = make("p", "nbl-said", root);
    this.said.setAttribute("role", "status");
  }
  slider(label, name, min, give) {
    const box = make("label", "nbl-slider", this.sliders, label);
    box.title = name;
    const input = make("input", "", box);
    Object.assign(input, { type: "range", min, max: 16, step: 1 });
    input.setAttribute("aria-label", name);
    const shown = make("output", "", box);
    const slider = { input, shown, box, until: 0 };
    input.addEventListener("input", () => {
      write(shown, input.value);
      slider.until = Date.now() + 2000;  // what the kernel says does not pull it from under the hand
    });
    input.addEventListener("change", () => {
      slider.until = Date.now() + 1500;
      give(Number(input.value));
    });
    return slider;
  }
  set(slider, value, most) {
    slider.box.hidden = value === null || value === undefined;
    if (slider.box.hidden || Date.now() < slider.until) return;
    slider.input.max = String(Math.max(most, value));
    slider.input.value = String(value);
    write(slider.shown, String(value));
  }
  update(view) {
    this.view = view;
    const paused = view.state === "paused";
    this.pause.idle = paused ? "Resume" : "Pause";
    this.pause.node.setAttribute("aria-label", `${this.pause.idle} the loader`);
    this.pause.check(view);
    this.restart.check(view);
    this.restart.node.hidden = !view.workers.length;
    this.sliders.hidden = !view.settings.workers;
    this.set(this.workers, view.settings.workers, view.settings.most);
    this.set(this.prefetch, view.settings.prefetch, 8);
  }
  say(text) {
    write(this.said, text);
    clearTimeout(this.silence);
    this.silence = setTimeout(() => write(this.said, ""), 10000);
  }
}

class Table {
  constructor(section, columns, command) {
    this.section = section;
    this.command = command;
    this.rows = new Map();
    this.scroll = make("div", "nbl-scroll", section.body);
    const table = make("table", "", this.scroll);
    table.setAttribute("aria-label", "Workers");
    const head = make("tr", "", make("thead", "", table));
    for (const name of columns) make("th", "", head, name).scope = "col";
    make("td", "nbl-act", head);
    this.width = columns.length + 1;
    this.body = make("tbody", "", table);
    this.notes = make("p", "nbl-notes", section.body);
  }
  update(view) {
    this.scroll.hidden = !view.workers.length;
    const alive = new Set(view.workers.map((w) => w.id));
    for (const [id, row] of this.rows) {
      if (alive.has(id)) continue;
      row.node.remove();
      row.detail.remove();
      this.rows.delete(id);
    }
    const stuck = view.workers.filter((w) => w.state === "stuck").map((w) => w.id);
    const counts = view.workers.length === 1 ? "1 worker" : `${view.workers.length} workers`;
    write(this.section.note, !view.workers.length ? "none"
      : stuck.length ? `${counts} · ▲ stuck: ${stuck.slice(0, 6).join(", ")}${stuck.length > 6 ? ", …" : ""}` : counts);
    this.section.note.classList.toggle("nbl-warned", stuck.length > 0);
    if (!this.section.open) return;
    if (stuck.join() !== this.stuck) {  // they come first
      this.stuck = stuck.join();
      const first = (id) => Number(!stuck.includes(id));
      const ids = [...this.rows.keys()].sort((a, b) => first(a) - first(b) || a - b);
      for (const id of ids) this.body.append(this.rows.get(id).node, this.rows.get(id).detail);
    }
    for (const worker of view.workers) {
      if (!this.rows.has(worker.id)) this.rows.set(worker.id, this.row(worker));
      const row = this.rows.get(worker.id);
      row.pending.check(view);
      if (row.worker === worker) continue;
      row.worker = worker;
      row.node.className = look(worker.state);
      worker.cells.forEach((text, i) => {
        write(row.cells[i], text);
        row.cells[i].title = text;
      });
      row.cells.at(-1).title = worker.exit && `the one before ${worker.exit}`;
      if (!row.detail.hidden) this.tell(row);
    }
    write(this.notes, view.notes.join(" · "));
  }
  row(worker) {
    const node = make("tr");
    this.body.append(node);
    const cells = worker.cells.map((_, i) => make(i ? "td" : "th", i === 1 ? "nbl-state" : "", node));
    cells[0].scope = "row";
    const row = { node, cells, worker: null, text: "" };
    const act = make("td", "nbl-act", node);
    row.stack = button(act, "Stack", `Where worker ${worker.id} stands`, () => {
      row.detail.hidden = !row.detail.hidden;
      row.stack.setAttribute("aria-expanded", String(!row.detail.hidden));
      if (row.detail.hidden) return;
      row.text = "asking…";
      this.tell(row);
      this.command("stack", worker.id);
    });
    row.stack.setAttribute("aria-expanded", "false");
    const restart = button(act, "Restart", `Restart worker ${worker.id}`, () => {
      const was = row.worker.incarnation;
      row.pending.begin("restarting…", (view) => view.workers.find((w) => w.id === worker.id)?.incarnation !== was);
      this.command("restart", worker.id);
    });
    row.pending = new Pending(restart, "Restart");
    row.detail = make("tr", "nbl-detail");
    node.after(row.detail);
    row.detail.hidden = true;
    const cell = make("td", "", row.detail);
    cell.colSpan = this.width;
    row.pre = make("pre", "", cell);
    row.pre.tabIndex = 0;
    row.pre.setAttribute("aria-label", `Stack and last output of worker ${worker.id}`);
    return row;
  }
  tell(row) {
    const parts = [row.text];
    if (row.worker?.exit) parts.push(`The one before ${row.worker.exit}.`);
    if (row.worker?.output) parts.push(`Standard error ended with:\n${row.worker.output}`);
    write(row.pre, parts.join("\n\n"));
  }
  stack(worker, text) {
    const row = this.rows.get(worker);
    if (!row) return;
    row.text = text;
    this.tell(row);
  }
}

class Charts {
  constructor(section, model, bokeh) {
    Object.assign(this, { section, model, bokeh });
    this.node = make("div", "nbl-charts", section.body);
    this.plots = [];
    this.keys = [];
    this.waiting = [];  // points that came before the plots were drawn
    this.asked = false;
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
    this.theme();
    this.drawn = true;
    this.feed(points, true);
    for (const later of this.waiting.splice(0)) this.feed(later, false);
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
      if (!this.drawn) this.waiting.push(points);
      else this.feed(points, full);
    }
    if (!this.section.open) return;
    for (const { key, label, stage } of this.keys) {
      const [median, spread] = view.stages[stage] ?? ["", ""];
      write(key, median ? `${label} ${median}` : label);
      key.title = spread;
    }
    this.bars.update(view.makeTimes);
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

// The slowest and the failed samples. A click copies the index.
class Samples {
  constructor(section) {
    this.section = section;
    const columns = make("div", "nbl-columns", section.body);
    this.slowest = this.list(columns, "Slowest, of the last three epochs");
    this.failed = this.list(columns, "Failed");
    this.said = make("p", "nbl-said", section.body);
    this.said.setAttribute("role", "status");
  }
  list(parent, title) {
    const box = make("div", "", parent);
    make("div", "nbl-box-title", box, title);
    return make("ul", "nbl-samples", box);
  }
  update({ slowest, failed, failures }) {
    const parts = [];
    if (slowest.length) parts.push(`slowest ${slowest[0][0].slice(0, 24)}: ${slowest[0][1]}`);
    if (failures) parts.push(`▲ ${failures} failed`);
    write(this.section.note, parts.join(" · "));
    this.section.note.classList.toggle("nbl-warned", failures > 0);
    if (!this.section.open) return;
    this.fill(this.slowest, slowest, "no sample yet");
    this.fill(this.failed, failed, "none");
  }
  fill(list, items, otherwise) {
    const key = JSON.stringify(items);
    if (list.dataset.key === key) return;
    list.dataset.key = key;
    list.replaceChildren();
    if (!items.length) make("li", "nbl-note", list, otherwise);
    for (const [index, what, where, who] of items) {
      const item = make("li", "", list);
      const node = button(item, index, `Copy the index ${index}`, async () => {
        await copy(index);
        write(this.said, `Copied: ${index}`);
      });
      node.title = "Copy the index";
      make("span", "", item, what);
      make("span", "nbl-note", item, `${where}, ${who}`);
    }
  }
}

class Log {
  constructor(section) {
    this.section = section;
    this.lines = [];
    const bar = make("div", "nbl-actions", section.body);
    this.kind = make("select", "", bar);
    this.kind.setAttribute("aria-label", "Which events to list");
    for (const [value, label] of [["", "all events"], ["worker", "workers"], ["error", "errors"], ["epoch", "epochs"],
      ["command", "commands"]]) {
      make("option", "", this.kind, label).value = value;
    }
    this.words = make("input", "", bar);
    Object.assign(this.words, { type: "search", placeholder: "filter" });
    this.words.setAttribute("aria-label", "List only events that contain");
    for (const event of ["keydown", "keyup"]) this.words.addEventListener(event, (e) => e.stopPropagation());
    this.list = make("ol", "nbl-log", section.body);
    this.list.tabIndex = 0;
    this.list.setAttribute("aria-label", "Events, newest first");
    this.kind.addEventListener("change", () => this.draw());
    this.words.addEventListener("input", () => this.draw());
  }
  update(lines, full) {
    if (full) this.lines = [];
    if (!lines.length && !full) return;
    this.lines.push(...lines);
    this.lines.splice(0, this.lines.length - LINES);
    const last = this.lines.at(-1);
    write(this.section.note, last ? last[2] : "none yet");
    this.draw();
  }
  draw() {
    if (!this.section.open) return;
    const kind = this.kind.value, words = this.words.value.toLowerCase();
    const shown = this.lines.filter(([, k, text]) => (!kind || k === kind) && text.toLowerCase().includes(words));
    const zero = this.lines[0]?.[0] ?? 0;
    this.list.replaceChildren(...shown.reverse().map(([ms, k, text]) => {
      const item = make("li", `nbl-line-${k}`);
      make("span", "nbl-note", item, `${((ms - zero) / 1000).toFixed(2)} s`);
      make("span", "nbl-kind", item, k === "error" ? "▲ error" : k);
      make("span", "", item, text);
      return item;
    }));
    if (!shown.length) make("li", "nbl-note", this.list, "no such event");
  }
}
