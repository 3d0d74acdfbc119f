// All that a saved notebook keeps of a widget. The rest is requested from the kernel, once per page.
const VERSION = "__VERSION__";
const page = (globalThis.__nbloader ??= new Map());

async function asset(model, name) {
  const key = `${name} ${VERSION}`;
  if (page.has(key)) return page.get(key);
  const packed = await new Promise((resolve) => {
    let delay = 2000, timer;
    const take = (message, buffers) => {
      if (message.kind !== "asset" || message.name !== name) return;
      clearTimeout(timer);
      model.off("msg:custom", take);
      resolve(buffers[0]);
    };
    const ask = () => {  // again and again: the kernel may be too busy
      model.send({ kind: "asset", name, token: String(Math.random()) });
      timer = setTimeout(ask, delay);
      delay = Math.min(2 * delay, 60000);
    };
    model.on("msg:custom", take);
    ask();
  });
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  if (!page.has(key)) page.set(key, text);
  return page.get(key);
}

function load(name, text) {
  const key = `module ${name} ${VERSION}`;
  if (!page.has(key)) page.set(key, import(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))));
  return page.get(key);
}

async function render({ model, el, host }) {
  el.classList.add("nbl-live");
  const [styles, core] = await Promise.all([
    asset(model, "styles"), asset(model, "code").then((text) => load("core", text)),
  ]);
  return core.mount({ model, el, host, styles, asset: (name) => asset(model, name), load });
}
export default { render };
