// The live view of a loader, without its panels. It gives each panel an element, hands it what the kernel sends, and
// sends clicks back.
//
// A panel is a module `panels/<name>.js` that exports
//
//   create(el, api) -> { update(data, news), ... }
//
// `el` is the element to draw into. `update(data, news)` is called whenever there is something new, and when the panel
// is unfolded:
//
//   data          what Panel.payload() returned last
//   news.entries  what Panel.news() returned since the last call; all of Panel.history() if `news.reset`
//   news.reset    the entries replace those that were given before
//   news.now      time of the kernel's frame, ms
//
// Optional members of the object: receive(reply, buffers), for answers to api.request(); key(event), which returns true
// if it has handled a key; retheme(), called when the page changes its theme; and remove().
//
// `api` has the functions below, and
//
//   api.request(name, fields)  asks the Python half: Panel.respond()
//   api.command(name, fields)  executes a command of the loader: "pause", "restart", ...
//   api.explore(fields)        opens { index }, a sample, or { epoch, batch } in the explorer; null in a recording
//   api.note(text, warn)       writes beside the heading
//   api.unfolded()             whether the panel can be seen; if not, update() may do less
//   api.bokeh()                a promise of BokehJS
//
// `../frontend/view.js` stands before this text in the module.

const DOCK = "To keep this in view while you work elsewhere: right-click it, and choose Create New View for Cell Output.";
const PATIENCE = 15000;  // ms after which a command without effect can be given again

// A button whose command has not had its effect yet says so, and ignores clicks. It is not disabled: it would lose the focus.
class Pending {
  constructor(node, idle) {
    this.node = node;
    this.idle = idle;
    this.done = null;
    this.busy = false;
    node.addEventListener("click", (event) => { if (this.busy) event.stopImmediatePropagation(); }, true);
  }
  begin(text, done) {  // `done(data)` tells whether the command has had its effect
    this.done = done;
    this.began = Date.now();
    this.show(text, true);
  }
  check(data) {
    if (this.done && (this.done(data) || Date.now() - this.began > PATIENCE)) this.done = null;
    if (!this.done) this.show(this.idle, false);
  }
  show(text, busy) {
    write(this.node, text);
    this.busy = busy;
    if (busy) this.node.setAttribute("aria-disabled", "true");
    else this.node.removeAttribute("aria-disabled");
    this.node.setAttribute("aria-busy", String(busy));
  }
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // a page without https
    const area = make("textarea", "", document.body, text);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

async function download(name, type, packed) {
  const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
  const link = make("a", "", document.body);
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// The frame around a panel. With a title it can be folded, and the page remembers which are unfolded.
const UNFOLDED = "nbloader-unfolded";
class Section {
  constructor(root, { name, title, unfolded }, onunfold) {
    if (!title) {
      this.body = make("div", `nbl-panel-${name}`, root);
      return;
    }
    this.node = make("details", `nbl-section nbl-panel-${name}`, root);
    const head = make("summary", "", this.node);
    make("span", "nbl-title", head, title);
    this.noteNode = make("span", "nbl-note", head);
    this.body = make("div", "nbl-body", this.node);
    this.node.open = this.remembered()[name] ?? unfolded;
    this.node.addEventListener("toggle", () => {
      try {
        sessionStorage.setItem(UNFOLDED, JSON.stringify({ ...this.remembered(), [name]: this.node.open }));
      } catch { /* a page that may not store anything forgets */ }
      if (this.node.open) onunfold();
    });
  }
  remembered() {
    try {
      return JSON.parse(sessionStorage.getItem(UNFOLDED)) ?? {};
    } catch {
      return {};
    }
  }
  get unfolded() {
    return this.node?.open ?? true;
  }
  note(text, warn = false) {
    write(this.noteNode, text);
    this.noteNode.classList.toggle("nbl-warned", warn);
  }
}

// An explorer below the panels: the view of another widget.
class Drawer {
  constructor(model, host, root, onclose) {
    this.manager = model.widget_manager;
    this.host = host;
    this.node = make("section", "nbl-drawer", root);
    this.node.setAttribute("aria-label", "explorer");
    this.node.hidden = true;
    this.node.tabIndex = -1;
    const head = make("div", "nbl-drawer-head", this.node);
    this.said = make("span", "nbl-note", head);
    this.said.setAttribute("role", "status");
    button(head, "Close explorer", "Close the explorer", () => {
      this.clear();
      this.node.hidden = true;
      onclose();
    });
    this.body = make("div", "", this.node);
  }
  async show({ model: id, said }) {
    this.node.hidden = false;
    write(this.said, said ?? "opening…");
    if (said) return this.reveal();
    if (this.manager?.create_view) {
      const view = await this.manager.create_view(await this.manager.get_model(id));
      this.clear();
      this.view = view;
      this.body.append(view.el);
    } else {  // marimo: its models are not those of ipywidgets
      const widget = await this.host.getWidget(`anywidget:${id}`);
      this.clear();
      const ending = new AbortController();
      this.view = { remove: () => ending.abort() };
      await widget.render({ el: make("div", "", this.body), signal: ending.signal });
    }
    write(this.said, "");
    this.reveal();
  }
  reveal() {
    this.node.scrollIntoView({ block: "nearest" });
    this.node.focus({ preventScroll: true });
  }
  clear() {
    this.view?.remove();
    this.view = null;
    this.body.replaceChildren();
  }
}

// Called once the widget exists, maybe before it is shown.
export const prepare = ({ asset, load }) => loadModules("panels", asset, load);

export async function mount({ model, el, host, styles, asset, load }) {
  const modules = await loadModules("panels", asset, load);
  // BokehJS attaches itself to `this`: give it an object of our own, so that another Bokeh on the page is not touched.
  const bokeh = async () => {
    const text = await asset("bokeh");
    return (await load("bokeh", `const o = {}; (function () {${text}\n}).call(o); export default o.Bokeh;`)).default;
  };
  addStyles(el, "nbl-styles", styles);
  const root = make("div", "nbl", el);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "nbloader dashboard");
  const waiting = make("p", "nbl-label", root, "Waiting for the kernel…");
  let drawer = null;
  let panels = null;  // name -> { panel, section, data }
  let id = null, now = 0;

  const build = (message) => {
    id = message.id;
    cover(id, 1);
    waiting.remove();
    panels = new Map();
    for (const spec of message.panels) {
      const { name } = spec;
      if (!modules[name]) continue;
      const entry = { data: null };
      panels.set(name, entry);
      const draw = () => { if (entry.data !== null) entry.panel.update(entry.data, { entries: [], reset: false, now }); };
      entry.section = new Section(root, spec, draw);
      const api = {
        make, write, describe, button, copy, download, Pending, bokeh,
        request: (what, fields) => connection.send({ ...fields, kind: "request", panel: name, name: what }),
        command: (what, fields) => connection.send({ ...fields, kind: "command", name: what }),
        explore: model.recorded ? null : (fields) => connection.send({ ...fields, kind: "explore" }),
        note: (text, warn) => entry.section.note(text, warn),
        unfolded: () => entry.section.unfolded,
      };
      entry.panel = modules[name].create(entry.section.body, api);
    }
    if (el.closest(".jp-Notebook")) make("p", "nbl-note nbl-dock", root, DOCK);
    drawer = new Drawer(model, host, root, () => connection.send({ kind: "close_explorer" }));
  };
  const apply = (message) => {
    const reset = message.kind === "full";
    now = message.now;
    for (const [name, entry] of panels) {
      if (name in message.payloads) entry.data = message.payloads[name];
      const entries = message.news[name] ?? [];
      entry.panel.update(entry.data, { entries, reset, now });
    }
  };
  const receive = (message, buffers) => {
    if (message.kind === "full" || message.kind === "tick") {
      connection.answered();
      if (!panels && message.kind === "full") build(message);
      if (panels) apply(message);
    } else if (message.kind === "reply") panels?.get(message.panel)?.panel.receive?.(message, buffers);
    else if (message.kind === "explorer") drawer?.show(message).catch((error) => drawer.show({ said: String(error) }));
  };
  const orphaned = () => {  // the last state stays, and no button pretends to work
    for (const node of root.querySelectorAll(".nbl-controls button, .nbl-controls input, .nbl-act button, .nbl-remedy button")) node.disabled = true;
    const state = root.querySelector(".nbl-chip");
    if (state) write(state, "kernel gone");
    else waiting.textContent = "The kernel is gone.";
  };
  const keys = (event) => event.target.type === "range" || [...panels?.values() ?? []].some(({ panel }) => panel.key?.(event));
  const retheme = () => { for (const { panel } of panels?.values() ?? []) panel.retheme?.(); };
  const connection = connect({ model, el, root, receive, orphaned, keys, retheme });
  return () => {
    connection.close();
    drawer?.clear();
    for (const { panel } of panels?.values() ?? []) panel.remove?.();
    if (id) cover(id, -1);
  };
}
