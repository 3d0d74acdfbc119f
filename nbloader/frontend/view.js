// What the views of the dashboard and the explorer share. It is put in front of their code, into the same module.
//
// Texts may come from samples and errors: they go into the page through textContent and nothing else.

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

// What a control does, for a pointer and for a screen reader, which also says the words on the control.
function describe(node, name) {
  const words = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim();
  const named = words(name).includes(words(node.textContent));
  node.setAttribute("aria-label", named ? name : `${node.textContent}: ${name}`);
  node.title = name;
}

function button(parent, label, name, onclick) {
  const node = make("button", "", parent, label);
  node.type = "button";
  describe(node, name);
  node.addEventListener("click", onclick);
  return node;
}

// The modules of an asset that maps names to their code, by name: panels, kinds of values.
async function loadModules(what, asset, load) {
  const sources = Object.entries(JSON.parse(await asset(what)));
  return Object.fromEntries(await Promise.all(sources.map(async ([name, text]) => [name, await load(`${what} ${name}`, text)])));
}

// The static form is in the notebook all the time. It is visible when no live view of the same widget is.
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

// Where the styles and the keys of a view are: the page, or in marimo a shadow tree, which styles of the page do not enter.
function treeOf(el) {
  const root = el.getRootNode();
  return root instanceof ShadowRoot ? root : document;
}

function addStyles(el, id, text) {
  const tree = treeOf(el);
  const node = tree.getElementById(id) ?? make("style", "", tree.head ?? tree);
  node.id = id;
  write(node, text);
}

// Changes nodes below `scope`. If that removes or hides the one with the focus, the focus goes to its successor with the
// same name, or else to what `next()` returns: not to the page, whose shortcuts would take the next key.
function keepFocus(scope, change, next) {
  const active = treeOf(scope).activeElement, held = scope.contains(active);
  change();
  if (!held || (active.isConnected && active.offsetParent)) return;
  const nameOf = (node) => node.title || node.getAttribute("aria-label");  // without words that change, such as "Selected"
  const successor = [...scope.querySelectorAll("button, input, select, canvas")].find((node) => nameOf(node) === nameOf(active) && node.offsetParent);
  (successor ?? next())?.focus();
}

// Whether the page behind a node is dark.
function isDark(node) {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  for (let at = node; at; at = at.parentElement ?? at.getRootNode().host) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = getComputedStyle(at).backgroundColor;  // in any notation
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    if (a > 127) return 0.3 * r + 0.59 * g + 0.11 * b < 128;
  }
  return false;
}

// The colors are JupyterLab's variables. A page without them has light colors, so a dark one must be recognized.
function recognizeTheme(el) {
  if (getComputedStyle(document.body).getPropertyValue("--jp-layout-color1")) return;
  el.dataset.jpThemeLight = String(!isDark(el.parentElement ?? el.getRootNode().host ?? document.body));
}

const SETTLING = [200, 1000, 4000];  // ms after a change of theme at which its style sheet may have arrived

// Connects a view with the kernel. `receive(message, buffers)` gets what is for all views or for this one;
// `orphaned()` is called once, when the kernel is gone; `keys(event)` returns true if it has handled a key; `retheme()` is
// called when the page changes its theme. Of what is returned, `answered()` ends the requests for the first message.
function connect({ model, el, root, receive, orphaned, keys, retheme }) {
  const view = crypto.randomUUID?.() ?? String(Math.random());
  let sent = 0;  // the token says which messages are the same one: marimo delivers each twice
  const send = (message) => { if (!connection.gone) model.send({ ...message, view, token: `${view} ${sent++}` }); };
  let timer = null, delay = 1000;
  const ask = () => {  // until answered: the kernel may be too busy the first time
    send({ kind: "ready" });
    timer = setTimeout(ask, delay);
    delay = Math.min(2 * delay, 30000);
  };
  const orphan = () => {
    if (connection.gone) return;
    connection.gone = true;
    clearTimeout(timer);
    orphaned();
  };
  const kernel = model.widget_manager?.kernel;  // in JupyterLab and Notebook; elsewhere a CSS class says it
  const onStatus = (_, status) => { if (["dead", "restarting", "autorestarting"].includes(status)) orphan(); };
  const onMessage = (message, buffers) => {
    if (!connection.gone && (message.to === undefined || message.to === view)) receive(message, buffers);
  };
  const onKey = (event) => {  // before JupyterLab, whose shortcuts would take the arrow keys
    if (root.contains(event.target) && keys(event)) event.stopPropagation();
  };
  const life = new MutationObserver(() => { if (el.classList.contains("jupyter-widgets-disconnected")) orphan(); });
  const settling = [];
  const settle = () => {  // now, and when the style sheet of the new theme has arrived
    settling.splice(0).forEach(clearTimeout);
    const apply = () => { recognizeTheme(el); retheme(); };
    apply();
    for (const delay of SETTLING) settling.push(setTimeout(apply, delay));
  };
  const themes = new MutationObserver(settle);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const connection = {
    send,
    gone: false,
    answered: () => clearTimeout(timer),
    close: () => {
      send({ kind: "gone" });
      connection.gone = true;
      clearTimeout(timer);
      keyboard.removeEventListener("keydown", onKey, true);
      themes.disconnect();
      dark.removeEventListener("change", settle);
      settling.splice(0).forEach(clearTimeout);
      life.disconnect();
      kernel?.disposed?.disconnect(orphan);
      kernel?.statusChanged?.disconnect(onStatus);
      model.off("msg:custom", onMessage);
    },
  };
  kernel?.disposed?.connect(orphan);
  kernel?.statusChanged?.connect(onStatus);
  const named = { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "data-theme", "class"] };
  for (const node of [document.body, document.documentElement]) themes.observe(node, named);
  dark.addEventListener("change", settle);
  life.observe(el, { attributes: true, attributeFilter: ["class"] });
  const keyboard = treeOf(el) === document ? window : treeOf(el);  // where the target of an event is a node of the view
  keyboard.addEventListener("keydown", onKey, true);
  recognizeTheme(el);
  model.on("msg:custom", onMessage);
  ask();
  return connection;
}
