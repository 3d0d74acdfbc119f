// A page that plays recorded runs: gives player.js what the kernel gives it in a notebook.

const texts = new Map(), modules = new Map();

async function unpack(name) {
  const packed = document.querySelector(`script[data-asset="${name}"]`).textContent;
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function asset(name) {
  if (!texts.has(name)) texts.set(name, unpack(name));
  return texts.get(name);
}

function load(name, text) {
  if (!modules.has(name)) modules.set(name, import(URL.createObjectURL(new Blob([text], { type: "text/javascript" }))));
  return modules.get(name);
}

// Light or dark: as the page around it says, such as that of a documentation, or as the system does.
const system = matchMedia("(prefers-color-scheme: dark)");
let around = null;
try {
  if (parent !== window) around = parent.document.documentElement;
} catch { /* a page of another origin */ }
const retheme = () => {
  const dark = around?.dataset.theme ? around.dataset.theme === "dark" : system.matches;
  document.body.dataset.jpThemeLight = String(!dark);
};
system.addEventListener("change", retheme);
if (around) new MutationObserver(retheme).observe(around, { attributes: true, attributeFilter: ["data-theme"] });
retheme();
if (parent !== window) document.body.classList.add("framed");

const { mount } = await load("player", await asset("code"));
await mount({ model: null, el: document.getElementById("player"), styles: await asset("styles"), asset, load });
