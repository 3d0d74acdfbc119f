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
//   api.note(text, warn)       writes beside the heading
//   api.unfolded()             whether the panel can be seen; if not, update() may do less
//   api.bokeh()                a promise of BokehJS
//
// Texts may come from samples and errors: they go into the page through textContent and nothing else.

const PATIENCE = 15000;  // ms after which a command without effect can be given again

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

// A button whose command has not had its effect yet says so.
class Pending {
  constructor(node, idle) {
    this.node = node;
    this.idle = idle;
    this.done = null;
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
    this.node.disabled = busy;
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

// The static form is in the notebook all the time. It is visible when no live view of its loader is.
const covered = new Map();
function cover(id, add) {
  const entry = covered.get(id) ?? { count: 0, style: null };
  entry.count += add;
  covered.set(id, entry);
  if (entry.count && !entry.style) {
    const form = `.nbl-static[data-nbl="${CSS.escape(id)}"]`;
    entry.style = make("style", "", document.head, `${form}, .jp-OutputArea-child:has(${form}) { display: none; }`);
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

export function mount({ model, el, styles, panels: modules, bokeh }) {
  addStyles(styles);
  const view = crypto.randomUUID?.() ?? String(Math.random());
  const root = make("div", "nbl", el);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "nbloader dashboard");
  const waiting = make("p", "nbl-label", root, "Waiting for the kernel…");
  const send = (message) => model.send({ ...message, view });
  let panels = null;  // name -> { panel, section, data }
  let id = null, now = 0, timer = null, delay = 1000, gone = false;

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
        make, write, button, copy, download, Pending, bokeh,
        request: (what, fields) => { if (!gone) send({ ...fields, kind: "request", panel: name, name: what }); },
        command: (what, fields) => send({ ...fields, kind: "command", name: what }),
        note: (text, warn) => entry.section.note(text, warn),
        unfolded: () => entry.section.unfolded,
      };
      entry.panel = modules[name].create(entry.section.body, api);
    }
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
    if (gone || (message.to !== undefined && message.to !== view)) return;
    if (message.kind === "full" || message.kind === "tick") {
      clearTimeout(timer);
      if (!panels && message.kind === "full") build(message);
      if (panels) apply(message);
    } else if (message.kind === "reply") panels?.get(message.panel)?.panel.receive?.(message, buffers);
  };
  const ask = () => {  // until answered: the kernel may be too busy the first time
    send({ kind: "ready" });
    timer = setTimeout(ask, delay);
    delay = Math.min(2 * delay, 30000);
  };
  const orphaned = () => {  // the last state stays, and no button pretends to work
    gone = true;
    clearTimeout(timer);
    for (const node of root.querySelectorAll(".nbl-controls button, .nbl-controls input, .nbl-act button")) node.disabled = true;
    const state = root.querySelector(".nbl-chip");
    if (state) write(state, "kernel gone");
    else waiting.textContent = "The kernel is gone.";
  };
  const kernel = model.widget_manager?.kernel;  // in JupyterLab and Notebook; elsewhere a CSS class says it
  const onStatus = (_, status) => { if (["dead", "restarting", "autorestarting"].includes(status)) orphaned(); };
  kernel?.disposed?.connect(orphaned);
  kernel?.statusChanged?.connect(onStatus);
  const life = new MutationObserver(() => { if (el.classList.contains("jupyter-widgets-disconnected")) orphaned(); });
  const themes = new MutationObserver(() => { for (const { panel } of panels?.values() ?? []) panel.retheme?.(); });
  themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  life.observe(el, { attributes: true, attributeFilter: ["class"] });
  const keys = (event) => {  // before JupyterLab, whose shortcuts would take the arrow keys
    if (!root.contains(event.target)) return;
    if (event.target.type === "range") event.stopPropagation();
    else if ([...panels?.values() ?? []].some(({ panel }) => panel.key?.(event))) event.stopPropagation();
  };
  window.addEventListener("keydown", keys, true);
  model.on("msg:custom", receive);
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
    model.off("msg:custom", receive);
    if (!orphan) send({ kind: "gone" });
    for (const { panel } of panels?.values() ?? []) panel.remove?.();
    if (id) cover(id, -1);
  };
}
