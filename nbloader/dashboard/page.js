// Helpers for the parts of the live view. The kernel sends these files one after the other as one module.
//
// Texts may come from samples and errors: they go into the page through textContent and nothing else.

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

// What a state looks like; the words stand beside it.
const BUSY = new Set(["fetching", "collating", "sending"]);
const look = (state) => `nbl-${BUSY.has(state) ? "busy" : state.replace(" ", "-")}`;

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

// A part that can be folded. The page remembers which are open.
const OPEN = "nbloader-open";
class Section {
  constructor(root, name, title, open, onopen) {
    this.node = make("details", `nbl-section nbl-part-${name}`, root);
    const head = make("summary", "", this.node);
    make("span", "nbl-title", head, title);
    this.note = make("span", "nbl-note", head);
    this.body = make("div", "nbl-body", this.node);
    this.node.open = this.remembered()[name] ?? open;
    this.node.addEventListener("toggle", () => {
      try {
        sessionStorage.setItem(OPEN, JSON.stringify({ ...this.remembered(), [name]: this.node.open }));
      } catch { /* a page that may not store anything forgets */ }
      if (this.node.open) onopen?.();
    });
    if (this.node.open) onopen?.();
  }
  remembered() {
    try {
      return JSON.parse(sessionStorage.getItem(OPEN)) ?? {};
    } catch {
      return {};
    }
  }
  get open() {
    return this.node.open;
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

function download(name, type, data) {
  const link = make("a", "", document.body);
  link.href = URL.createObjectURL(new Blob([data], { type }));
  link.download = name;
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

async function unpack(packed) {
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
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
