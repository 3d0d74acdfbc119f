// All that a saved notebook keeps of the dashboard. The rest is requested from the kernel, once per page.
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
      model.send({ kind: "asset", name });
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

async function loadPanels(model) {
  const sources = Object.entries(JSON.parse(await asset(model, "panels")));
  return Object.fromEntries(await Promise.all(sources.map(async ([name, text]) => [name, await load(`panel ${name}`, text)])));
}

async function render({ model, el }) {
  el.classList.add("nbl-live");
  const [styles, core, panels] = await Promise.all([
    asset(model, "styles"), asset(model, "code").then((text) => load("core", text)), loadPanels(model),
  ]);
  // BokehJS attaches itself to `this`: give it an object of our own, so that another Bokeh on the page is not touched.
  const bokeh = async () => {
    const text = await asset(model, "bokeh");
    return (await load("bokeh", `const o = {}; (function () {${text}\n}).call(o); export default o.Bokeh;`)).default;
  };
  return core.mount({ model, el, styles, panels, bokeh });
}
export default { render };
