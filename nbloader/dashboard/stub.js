// All that a saved notebook keeps of the dashboard. The rest is asked of the kernel, once per page.
const VERSION = "__VERSION__";
const page = (globalThis.__nbloader ??= new Map());

async function asset(model, name) {
  const key = `${name} ${VERSION}`;
  if (page.has(key)) return page.get(key);
  const packed = await new Promise((resolve) => {
    let wait = 2000, timer;
    const take = (msg, buffers) => {
      if (msg.kind !== "asset" || msg.name !== name) return;
      clearTimeout(timer);
      model.off("msg:custom", take);
      resolve(buffers[0]);
    };
    const ask = () => {  // again and again: the kernel may be too busy to hear it
      model.send({ kind: "asset", name });
      timer = setTimeout(ask, wait);
      wait = Math.min(2 * wait, 60000);
    };
    model.on("msg:custom", take);
    ask();
  });
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text();
  if (!page.has(key)) page.set(key, text);
  return page.get(key);
}

async function module(model, name, wrap = (text) => text) {
  const text = await asset(model, name);
  const key = `module ${name} ${VERSION}`;
  if (!page.has(key)) {
    const url = URL.createObjectURL(new Blob([wrap(text)], { type: "text/javascript" }));
    page.set(key, import(url));
  }
  return page.get(key);
}

async function render({ model, el }) {
  el.classList.add("nbl-live");
  const [styles, code] = await Promise.all([asset(model, "styles"), module(model, "code")]);
  // BokehJS hangs itself on `this`: give it an object of our own, so that another Bokeh on the page stays untouched.
  const bokeh = async () => (await module(model, "bokeh", (js) =>  // asked for when a plot is wanted
    `const o = {}; (function () {${js}\n}).call(o); export default o.Bokeh;`)).default;
  return code.mount({ model, el, styles, bokeh });
}
export default { render };
