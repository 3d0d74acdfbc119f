// The top of the dashboard: the verdict, the progress of the epoch, four figures, and the cache of samples.

const SPOKEN = 5000;  // ms for which a screen reader finds the sentence that it has spoken

const COMPACT = "nbloader-compact";

const STATES = {
  new: "No epoch was started yet", starting: "Workers start, or load their dataset", running: "Batches are delivered",
  paused: "No batch is delivered or requested", idle: "No epoch is running",
  stopped: "An error or an interrupt left the loop, and it has not come back", closed: "The loader was closed",
};

// What is known about changes: predictions with a button for each that would help; after a click what was measured, with
// a button that takes it back.
function remedies(parent, { make, write, button, command, Pending }) {
  const row = make("div", "nbl-remedy", parent);
  const actions = make("div", "nbl-actions", row);
  const text = make("span", "nbl-outlook", row);
  let shown = "", data = null, pending = [];

  const add = (label, title, click, done) => {
    const node = button(actions, label, label, () => {
      waiting.begin("…", done);
      click();
    });
    node.title = title;  // what comes of it
    const waiting = new Pending(node, label);
    pending.push(waiting);
  };
  const suggest = (suggestion) => {
    const { label, call, restart, num_workers, prefetch_factor } = suggestion;
    const title = restart.length ? `${label}; other workers produce its batches`
      : `${call}: measured at once, and you can undo it. Batches stay the same`;
    add(label, title, () => {
      if (!restart.length) command("apply", { num_workers, prefetch_factor });
      for (const worker of restart) command("restart", { worker });
    }, ({ suggestions, trial }) => trial?.changed || !suggestions.some((other) => other.label === label));
  };
  const draw = () => {
    actions.replaceChildren();
    pending = [];
    const { suggestions, trial } = data;
    if (trial?.changed) {
      add("Undo", "Return to the settings before", () => command("undo_tuning"), ({ trial: now }) => !now?.changed);
      suggestions.filter(({ restart }) => restart.length).forEach(suggest);
    } else suggestions.forEach(suggest);
  };

  return (next) => {
    data = next;
    const { outlook, suggestions, trial } = data;
    const key = JSON.stringify([Boolean(trial?.changed), suggestions.map(({ label }) => label)]);
    if (key !== shown) {
      draw();
      shown = key;
    }
    for (const waiting of pending) waiting.check(data);
    write(text, trial?.changed ? trial.text : outlook && `Predicted: ${outlook}`);
    text.title = text.textContent;
    row.hidden = !pending.length && !text.textContent;
  };
}

export function create(el, api) {
  const { make, write, describe, button } = api;
  const head = make("div", "nbl-head", el);
  const verdict = make("p", "nbl-verdict", head);
  const failure = make("span", "nbl-failure", verdict);  // the sentence about the error that ended the epoch
  const rest = make("span", "", verdict);
  const spoken = make("p", "nbl-spoken", head);  // for screen readers: once per topic, not whenever a number changes
  spoken.setAttribute("aria-live", "polite");
  const showRemedies = remedies(head, api);
  const line = make("div", "nbl-progress", el);
  const state = make("span", "nbl-chip", line);
  const bar = make("div", "nbl-bar", line);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", "Progress of the epoch");
  bar.title = "Progress of the epoch";
  const fill = make("span", "", bar);
  const progress = make("span", "", line);
  const root = el.closest(".nbl");
  const size = button(line, "", "", () => resize(!root.classList.contains("nbl-compact")));
  size.classList.add("nbl-size");
  const resize = (compact) => {
    root.classList.toggle("nbl-compact", compact);
    write(size, compact ? "Full" : "Compact");
    describe(size, compact ? "Show the whole dashboard" : "Show one line");
    try {
      sessionStorage.setItem(COMPACT, compact ? "1" : "");
    } catch { /* a page that may not store anything forgets */ }
  };
  const tiles = make("div", "nbl-tiles", el);
  const cache = make("p", "nbl-note", el);
  let topic = null, silence = null;
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
    node.title = tile.tip;
  };

  return {
    update(data) {
      if (data.topic !== topic) {
        write(spoken, data.verdict);
        clearTimeout(silence);  // its numbers are those of this moment: it must not be found later
        silence = setTimeout(() => write(spoken, ""), SPOKEN);
      }
      topic = data.topic;
      const said = data.failure && data.verdict.startsWith(data.failure) ? data.failure : "";
      write(failure, said);
      write(rest, data.verdict.slice(said.length));
      verdict.title = data.verdict;
      showRemedies(data);
      write(state, data.state);
      state.title = STATES[data.state] ?? "";
      const { share, text } = data.progress;
      fill.style.width = `${100 * (share ?? 0)}%`;
      if (share === null) bar.removeAttribute("aria-valuenow");
      else bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
      write(progress, text);
      data.tiles.forEach(drawTile);
      write(cache, data.cache && `Cache: ${data.cache}`);
      cache.hidden = !data.cache;
    },
    remove() {
      clearTimeout(silence);
    },
  };
}
