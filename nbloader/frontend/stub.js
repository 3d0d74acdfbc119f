// All that a saved notebook keeps of a widget. The rest is requested from the kernel, once per page: as soon as the widget
// exists, so that the page has it when the widget is shown.
const VERSION = "__VERSION__";
const FILES = __FILES__;
const AGAIN = 2000;  // ms after which a file is requested again: the kernel may be too busy
const page = (globalThis.__nbloader ??= new Map());

// Several views may need a file. Each asks its own kernel, but not while another one has just done so; the first answer
// is for all of them.
function asset(model, name) {
  const key = `${name} ${VERSION}`;
  if (page.has(key)) return Promise.resolve(page.get(key));
  const pending = `requested ${key}`;
  if (!page.has(pending)) {
    const file = { asked: -Infinity };
    file.text = new Promise((resolve) => { file.take = resolve; });
    file.text.then((text) => page.set(key, text), () => page.delete(pending));  // a later view asks again
    page.set(pending, file);
  }
  const file = page.get(pending);
  request(model, name, file);
  return file.text;
}

function request(model, name, file) {
  let delay = AGAIN, timer;
  const stop = () => {
    clearTimeout(timer);
    model.off("msg:custom", receive);
  };
  const receive = (message, buffers) => {
    if (message.kind === "asset" && message.name === name) file.take(unpacked(buffers[0]));
  };
  const ask = () => {
    file.asked = Date.now();
    model.send({ kind: "asset", name, token: String(Math.random()) });
    timer = setTimeout(ask, delay);
    delay = Math.min(2 * delay, 60000);
  };
  model.on("msg:custom", receive);
  file.text.then(stop, stop);
  const since = Date.now() - file.asked;
  if (since >= AGAIN) ask();
  else timer = setTimeout(ask, AGAIN - since);
}

async function unpacked(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function load(name, text) {
  const key = `module ${name} ${VERSION}`;
  if (!page.has(key)) page.set(key, import(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))));
  return page.get(key);
}

const core = async (model) => load("core", await asset(model, "code"));

function initialize({ model }) {  // called when the widget is created, which is not awaited: the cell may still be running
  for (const name of FILES) asset(model, name).catch(() => {});
  core(model).then((view) => view.prepare?.({ asset: (name) => asset(model, name), load })).catch(() => {});
}

async function render({ model, el, host }) {
  el.classList.add("nbl-live");
  const [styles, view] = await Promise.all([asset(model, "styles"), core(model)]);
  return view.mount({ model, el, host, styles, asset: (name) => asset(model, name), load });
}
export default { initialize, render };
