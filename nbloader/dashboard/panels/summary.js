// The top of the dashboard: the verdict, the progress of the epoch, four figures, and the cache of samples.

const CALM = 2000;  // ms: numbers in the verdict change at every tick, people and screen readers want a pause between

const COMPACT = "nbloader-compact";
const TIP = "To keep the dashboard in view, right-click it in JupyterLab and choose Create New View for Cell Output";

export function create(el, { make, write, button }) {
  const verdict = make("p", "nbl-verdict", el);
  verdict.setAttribute("aria-live", "polite");
  const line = make("div", "nbl-progress", el);
  const state = make("span", "nbl-chip", line);
  const bar = make("div", "nbl-bar", line);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", "Progress of the epoch");
  const fill = make("span", "", bar);
  const progress = make("span", "", line);
  const root = el.closest(".nbl");
  const size = button(line, "", "", () => resize(!root.classList.contains("nbl-compact")));
  size.classList.add("nbl-size");
  const resize = (compact) => {
    root.classList.toggle("nbl-compact", compact);
    write(size, compact ? "Full" : "Compact");
    const name = compact ? "Show the whole dashboard" : "Show one line";
    size.setAttribute("aria-label", name);
    size.title = `${name}. ${TIP}`;
    try {
      sessionStorage.setItem(COMPACT, compact ? "1" : "");
    } catch { /* a page that may not store anything forgets */ }
  };
  const tiles = make("div", "nbl-tiles", el);
  const cache = make("p", "nbl-note", el);
  let written = 0, topic = null;
  let compact = false;
  try {
    compact = sessionStorage.getItem(COMPACT) === "1";
  } catch { /* as above */ }
  resize(compact);

  const drawTile = (tile, i) => {
    let node = tiles.children[i];
    if (!node) {
      node = make("div", "nbl-tile", tiles);
      for (const name of ["nbl-label", "nbl-value", "nbl-note"]) make("div", name, node);
      make("span", "", node.children[1]);
      make("span", "nbl-unit", node.children[1]);
    }
    const [label, value, note] = node.children;
    write(label, tile.label);
    write(value.children[0], tile.value);
    write(value.children[1], tile.unit && ` ${tile.unit}`);
    write(note, tile.note);
    node.title = tile.note ? `${tile.tip}. ${tile.note}` : tile.tip;
  };

  return {
    update(data, { reset }) {
      if (reset || Date.now() - written > CALM || data.topic !== topic) {
        write(verdict, data.verdict);
        verdict.title = data.verdict;
        written = Date.now();
        topic = data.topic;
      }
      write(state, data.state);
      const { share, text } = data.progress;
      fill.style.width = `${100 * (share ?? 0)}%`;
      if (share === null) bar.removeAttribute("aria-valuenow");
      else bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
      write(progress, text);
      data.tiles.forEach(drawTile);
      write(cache, data.cache && `Cache: ${data.cache}`);
      cache.hidden = !data.cache;
    },
  };
}
