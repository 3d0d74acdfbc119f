// The live view of a loader. It writes what the kernel sends (dashboard/payload.py makes every string), draws it, and
// sends clicks back. It keeps the history, and no state of the loader's own.

export function mount({ model, el, styles, bokeh }) {
  addStyles(styles);
  const me = crypto.randomUUID?.() ?? String(Math.random());
  const root = make("div", "nbl", el);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "nbloader dashboard");
  const waiting = make("p", "nbl-label", root, "Waiting for the kernel…");
  const send = (message) => model.send({ ...message, view: me });
  const command = (name, worker = null, value = null) =>
    send(name === "stack" || name === "trace" ? { kind: name, worker } : { kind: "command", name, worker, value });
  let parts = null, view = {}, id = null, timer = null, wait = 1000, gone = false;

  const build = (msg) => {
    id = msg.id;
    cover(id, 1);
    waiting.remove();
    const head = new Head(root, command);
    const again = () => parts && apply({ now: parts.timeline.now, view: {}, spans: [], lines: [] });  // what was folded
    const path = new PathView(new Section(root, "path", "Path of a batch", true, again));
    const timeline = new Timeline(new Section(root, "timeline", "Timeline", true, again));
    const table = new Table(new Section(root, "crew", "Workers", true, again), msg.columns, command);
    const askForPlots = () => {
      if (!gone) send({ kind: "plots" });
      again();
    };
    const charts = new Charts(new Section(root, "plots", "Plots over time", false, askForPlots), model, bokeh);
    const samples = new Samples(new Section(root, "samples", "Samples", false, again));
    const log = new Log(new Section(root, "events", "Events", false, () => parts?.log.draw()));
    parts = { head, path, timeline, table, charts, samples, log };
  };
  const merge = (news) => {
    const { workers, ...rest } = news;
    Object.assign(view, rest);
    if (!workers) return;
    const rows = new Map((view.workers ?? []).map((w) => [w.id, w]));
    for (const row of workers.rows) rows.set(row.id, row);
    view.workers = [...rows.values()].filter((w) => w.id < workers.count).sort((a, b) => a.id - b.id);
  };
  const apply = (msg) => {
    const full = msg.kind === "full";
    if (full) view = {};
    merge(msg.view);
    parts.head.update(view);
    parts.path.update(view.path, view.rate);
    parts.timeline.update(view, msg.now, msg.spans, full);
    parts.table.update(view);
    parts.charts.update(view, msg.points, full);
    parts.samples.update(view.samples);
    parts.log.update(msg.lines, full);
    const { path } = parts;
    write(path.section.note, view.path.boxes.filter((box) => box.alarm && box.id !== "loop").map((box) => box.alarm).join(" · "));
  };
  const take = async (msg, buffers) => {
    if (gone) return;
    if (msg.to !== undefined && msg.to !== me) return;
    if (msg.kind === "full" || msg.kind === "tick") {
      clearTimeout(timer);
      if (!parts && msg.kind === "full") build(msg);
      if (parts) apply(msg);
    } else if (!parts) return;
    else if (msg.kind === "plots") parts.charts.build(msg.plots, msg.points);
    else if (msg.kind === "stack") parts.table.stack(msg.worker, msg.text);
    else if (msg.kind === "said") parts.head.controls.say(msg.text);
    else if (msg.kind === "file") {
      download(msg.name, "application/json", await unpack(buffers[0]));
      parts.head.controls.say(`${msg.name} is saved: open it at ui.perfetto.dev`);
    }
  };
  const ask = () => {  // until answered: the kernel may be too busy to hear it the first time
    send({ kind: "ready" });
    timer = setTimeout(ask, wait);
    wait = Math.min(2 * wait, 30000);
  };
  const orphaned = () => {  // the last state stays, and nothing pretends that a click would do something
    gone = true;
    clearTimeout(timer);
    for (const node of root.querySelectorAll(".nbl-controls button, .nbl-controls input, .nbl-act button")) node.disabled = true;
    if (parts) write(parts.head.state, "kernel gone");
    else waiting.textContent = "The kernel is gone.";
  };
  const kernel = model.widget_manager?.kernel;  // JupyterLab's and Notebook's; elsewhere the class below says it
  const onStatus = (_, status) => { if (["dead", "restarting", "autorestarting"].includes(status)) orphaned(); };
  kernel?.disposed?.connect(orphaned);
  kernel?.statusChanged?.connect(onStatus);
  const life = new MutationObserver(() => { if (el.classList.contains("jupyter-widgets-disconnected")) orphaned(); });
  const themes = new MutationObserver(() => {
    parts?.charts.theme();
    parts?.timeline.draw();
  });
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  life.observe(el, { attributes: true, attributeFilter: ["class"] });
  const keys = (event) => {  // before JupyterLab, whose shortcuts would take the arrow keys from sliders and timeline
    if (!root.contains(event.target)) return;
    if (event.target.type === "range") event.stopPropagation();
    else if (event.target === parts?.timeline.canvas && parts.timeline.key(event)) event.stopPropagation();
  };
  window.addEventListener("keydown", keys, true);
  model.on("msg:custom", take);
  ask();
  return () => {
    const orphan = gone;
    gone = true;
    clearTimeout(timer);
    window.removeEventListener("keydown", keys, true);
    themes.disconnect();
    life.disconnect();
    kernel?.disposed?.disconnect(orphaned);
    kernel?.statusChanged?.disconnect(onStatus);
    model.off("msg:custom", take);
    if (!orphan) send({ kind: "gone" });
    parts?.charts.remove();
    parts?.timeline.remove();
    if (id) cover(id, -1);
  };
}
