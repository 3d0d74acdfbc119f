// The live view of a loader. It writes what the kernel sends (dashboard/payload.py makes every string), draws four
// Bokeh plots, and sends clicks back. It keeps no state of the loader's own.
//
// Texts may come from samples and errors: they go into the page through textContent and nothing else.

const KEPT = 1200;  // points per plot
const BUSY = new Set(["fetching", "collating", "sending"]);
const PATIENCE = 15000;  // ms after which a command without effect may be given again

function make(tag, className, parent, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function button(parent, label, name, onclick) {
  const node = make("button", "", parent, label);
  node.type = "button";
  node.setAttribute("aria-label", name);
  node.addEventListener("click", onclick);
  return node;
}

// A command that was given and has not had its effect yet. The button says so at once.
class Pending {
  constructor(node, idle) {
    this.node = node;
    this.idle = idle;
    this.until = null;
  }
  begin(text, done) {
    this.until = done;
    this.began = Date.now();
    this.show(text, true);
  }
  check(view) {
    if (this.until && (this.until(view) || Date.now() - this.began > PATIENCE)) this.until = null;
    if (!this.until) this.show(this.idle, false);
  }
  show(text, busy) {
    write(this.node, text);
    this.node.disabled = busy;
    this.node.setAttribute("aria-busy", String(busy));
  }
}

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
    const actions = make("div", "nbl-actions", line);
    this.paused = false;
    const pause = button(actions, "Pause", "Pause the loader", () => {
      const was = this.paused;
      this.pause.begin(was ? "resuming…" : "pausing…", (view) => (view.state === "paused") !== was);
      command(was ? "resume" : "pause");
    });
    const restart = button(actions, "Restart all", "Restart all workers", () => {
      const before = new Map(this.workers.map((w) => [w.id, w.incarnation]));
      this.restart.begin("restarting…", (view) => view.workers.every((w) => before.get(w.id) !== w.incarnation));
      command("restart");
    });
    this.pause = new Pending(pause, "Pause");
    this.restart = new Pending(restart, "Restart all");
    this.tiles = make("div", "nbl-tiles", root);
    this.written = 0;
  }
  update(view) {
    // Its numbers change at every tick: people, and screen readers, get a new sentence every two seconds.
    const news = [view.state, ...view.workers.map((w) => w.state === "stuck")].join();
    if (Date.now() - this.written > 2000 || news !== this.news) {
      write(this.verdict, view.verdict);
      this.written = Date.now();
      this.news = news;
    }
    write(this.state, view.state);
    this.workers = view.workers;
    this.paused = view.state === "paused";
    this.pause.idle = this.paused ? "Resume" : "Pause";
    this.pause.node.setAttribute("aria-label", `${this.pause.idle} the loader`);
    this.pause.check(view);
    this.restart.check(view);
    this.restart.node.hidden = !view.workers.length;
    const { share, text } = view.progress;
    this.fill.style.width = `${100 * (share ?? 0)}%`;
    if (share === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    write(this.progress, text);
    view.tiles.forEach((tile, i) => this.tile(i, tile));
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

class Table {
  constructor(root, columns, command) {
    this.command = command;
    this.rows = new Map();
    this.scroll = make("div", "nbl-scroll", root);
    const table = make("table", "", this.scroll);
    table.setAttribute("aria-label", "Workers");
    const head = make("tr", "", make("thead", "", table));
    for (const name of columns) make("th", "", head, name).scope = "col";
    make("td", "nbl-act", head);
    this.body = make("tbody", "", table);
    this.notes = make("p", "nbl-notes", root);
  }
  update(view) {
    this.scroll.hidden = !view.workers.length;
    const alive = new Set(view.workers.map((w) => w.id));
    for (const [id, row] of this.rows) {
      if (alive.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    for (const worker of view.workers) {
      if (!this.rows.has(worker.id)) this.rows.set(worker.id, this.row(worker));
      const row = this.rows.get(worker.id);
      const look = BUSY.has(worker.state) ? "busy" : worker.state.replace(" ", "-");
      row.node.className = `nbl-${look}`;
      row.worker = worker;
      worker.cells.forEach((text, i) => {
        write(row.cells[i], text);
        row.cells[i].title = text;
      });
      if (worker.output) row.cells.at(-1).title = `${worker.cells.at(-1)}\n${worker.output}`;
      row.pending.check(view);
    }
    write(this.notes, view.notes.join(" · "));
  }
  row(worker) {
    const node = make("tr", "", this.body);
    const cells = worker.cells.map((_, i) => make(i ? "td" : "th", i === 1 ? "nbl-state" : "", node));
    cells[0].scope = "row";
    const row = { node, cells, worker };
    const restart = button(make("td", "nbl-act", node), "Restart", `Restart worker ${worker.id}`, () => {
      const before = row.worker.incarnation;
      row.pending.begin("restarting…", (view) =>
        view.workers.find((w) => w.id === worker.id)?.incarnation !== before);
      this.command("restart", worker.id);
    });
    row.pending = new Pending(restart, "Restart");
    return row;
  }
}

class Charts {
  constructor(root, { charts, seconds, atLeast }) {
    Object.assign(this, { charts, seconds, atLeast });
    this.node = make("div", "nbl-charts", root);
    this.plots = [];
    this.keys = [];
    this.slots = charts.map((chart) => {
      const figure = make("figure", "nbl-chart", this.node);
      const caption = make("figcaption", "", figure, chart.title);
      const keys = make("div", "nbl-keys", caption);
      make("span", "", keys, chart.unit);
      for (const { label, color, stage } of chart.series) {
        const key = make("span", "nbl-key", keys, label);
        key.style.setProperty("--nbl-key", color);
        if (stage) this.keys.push({ key, label, stage });
      }
      const slot = make("div", "nbl-plot", figure);
      slot.setAttribute("role", "img");
      slot.setAttribute("aria-label", `${chart.title}, ${chart.unit}, over time`);
      return slot;
    });
  }
  async draw(Bokeh) {
    for (const [i, chart] of this.charts.entries()) {
      const item = { ...chart.item, target_id: null };
      const [view] = await Bokeh.embed.embed_item(item, this.slots[i]);
      this.plots.push({ view, plot: view.model, source: view.model.document.get_model_by_name("source") });
    }
    this.theme();
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
    const last = points.time.at(-1);
    if (last !== undefined) this.end = last;
    if (full && points.time.length) this.begin = points.time[0];
    for (const { key, label, stage } of this.keys) {
      write(key, view.stages[stage] ? `${label} ${view.stages[stage]}` : label);
    }
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

// The picture of the last state is in the notebook all the time. It shows when no live view of its loader does.
const covered = new Map();
function cover(id, add) {
  const entry = covered.get(id) ?? { count: 0, style: null };
  entry.count += add;
  covered.set(id, entry);
  if (entry.count && !entry.style) {
    const picture = `.nbl-picture[data-nbl="${CSS.escape(id)}"]`;
    entry.style = make("style", "", document.head,
      `${picture}, .jp-OutputArea-child:has(${picture}) { display: none; }`);
  } else if (!entry.count) {
    entry.style?.remove();
    covered.delete(id);
  }
}

function addStyles(text) {
  const node = document.getElementById("nbl-styles") ?? make("style", "", document.head);
  node.id = "nbl-styles";
  write(node, text);
}

export function mount({ model, el, styles, bokeh }) {
  addStyles(styles);
  const me = crypto.randomUUID?.() ?? String(Math.random());
  const root = make("div", "nbl", el);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "nbloader dashboard");
  const waiting = make("p", "nbl-label", root, "Waiting for the kernel…");
  const command = (name, worker = null) => model.send({ kind: "command", name, worker });
  let parts = null, id = null, timer = null, wait = 1000, gone = false;

  const build = async (msg) => {
    id = msg.id;
    cover(id, 1);
    waiting.remove();
    const head = new Head(root, command);
    const charts = new Charts(root, msg.plots);
    const table = new Table(root, msg.columns, command);
    parts = { head, charts, table };
    apply(msg);
    await charts.draw(await bokeh);
    if (!gone) model.send({ kind: "ready", view: me });  // now with plots to fill
  };
  const apply = (msg) => {
    parts.head.update(msg.view);
    parts.charts.update(msg.view, msg.points, msg.kind === "full");
    parts.table.update(msg.view);
  };
  const take = (msg) => {
    if (msg.kind !== "full" && msg.kind !== "tick") return;
    if (gone) return;
    clearTimeout(timer);
    if (parts) apply(msg);
    else if (msg.kind === "full") build(msg);
  };
  const ask = () => {  // until answered: the kernel may be too busy to hear it the first time
    model.send({ kind: "ready", view: me });
    timer = setTimeout(ask, wait);
    wait = Math.min(2 * wait, 30000);
  };
  const orphaned = () => {  // the last state stays, and nothing pretends that a click would do something
    gone = true;
    clearTimeout(timer);
    for (const node of root.querySelectorAll("button")) node.disabled = true;
    if (parts) write(parts.head.state, "kernel gone");
    else waiting.textContent = "The kernel is gone.";
  };
  const kernel = model.widget_manager?.kernel;  // JupyterLab's and Notebook's; elsewhere the class below says it
  const onStatus = (_, status) => { if (status === "dead" || status === "restarting") orphaned(); };
  kernel?.disposed?.connect(orphaned);
  kernel?.statusChanged?.connect(onStatus);
  const life = new MutationObserver(() => { if (el.classList.contains("jupyter-widgets-disconnected")) orphaned(); });
  const themes = new MutationObserver(() => parts?.charts.theme());
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  life.observe(el, { attributes: true, attributeFilter: ["class"] });
  model.on("msg:custom", take);
  ask();
  return () => {
    const orphan = gone;
    gone = true;
    clearTimeout(timer);
    themes.disconnect();
    life.disconnect();
    kernel?.disposed?.disconnect(orphaned);
    kernel?.statusChanged?.disconnect(onStatus);
    model.off("msg:custom", take);
    if (!orphan) model.send({ kind: "gone", view: me });
    parts?.charts.remove();
    if (id) cover(id, -1);
  };
}
