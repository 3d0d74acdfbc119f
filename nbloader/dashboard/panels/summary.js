// The top of the dashboard: the verdict, the progress of the epoch, four figures, and the cache of samples.

const CALM = 2000;  // ms: numbers in the verdict change at every tick, people and screen readers want a pause between

export function create(el, { make, write }) {
  const verdict = make("p", "nbl-verdict", el);
  verdict.setAttribute("aria-live", "polite");
  const line = make("div", "nbl-progress", el);
  const state = make("span", "nbl-chip", line);
  const bar = make("div", "nbl-bar", line);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", "Progress of the epoch");
  const fill = make("span", "", bar);
  const progress = make("span", "", line);
  const tiles = make("div", "nbl-tiles", el);
  const cache = make("p", "nbl-note", el);
  let written = 0, topic = null;

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
    update(data) {
      if (Date.now() - written > CALM || data.topic !== topic) {
        write(verdict, data.verdict);
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
