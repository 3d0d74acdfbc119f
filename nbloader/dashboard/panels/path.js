// The path of a batch: boxes, and batches that glide from one to the next. path.py says what is in which box.

const GLIDE = 230;  // ms
const TIPS = {
  sampler: "Draws the indices of batches. The numbers are those of batches that no worker has been given yet",
  workers: "Each worker with the batch that it processes, and those in its queue",
  shared: "Batches pass through shared memory. The rate covers the same time as the throughput above",
  reorder: "Batches that arrived before an earlier one",
  ready: "Batches in order that wait for your loop. The window is how many are requested ahead",
  pin: "Batches are pinned, so that the device can read them. The time is the mean of the last 200",
  upload: "Batches are copied to the device. The time is the mean of the last 200",
  inprocess: "Without workers, batches are fetched and collated between two steps of the loop",
  loop: "The batch that your loop processes, or the one that it waits for",
};
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export function create(el, { make, write, note, unfolded }) {
  const root = make("div", "nbl-path", el);
  root.setAttribute("role", "list");
  root.setAttribute("aria-label", "The path of a batch");
  const boxes = new Map();  // id -> parts
  const tokens = new Map();  // number of a batch -> node
  const cells = [];  // of workers
  let order = null;

  const drawBox = ({ id, title, note: text, mark, alarm }) => {
    if (!boxes.has(id)) {
      const node = make("div", "", root);
      node.setAttribute("role", "listitem");
      node.title = TIPS[id] ?? "";
      const parts = { node, title: make("div", "nbl-box-title", node) };
      if (id === "workers") parts.group = make("div", "nbl-group", node);
      else {
        parts.tokens = make("div", "nbl-tokens", node);
        parts.more = make("span", "nbl-more", parts.tokens);
      }
      parts.note = make("div", "nbl-note", node);
      parts.alarm = make("div", "nbl-alarm", node);
      boxes.set(id, parts);
    }
    const parts = boxes.get(id);
    parts.node.className = `nbl-box nbl-box-${id}${mark ? ` nbl-${mark}` : ""}`;
    write(parts.title, title);
    write(parts.note, text);
    write(parts.alarm, alarm);
    return parts;
  };
  const place = (parent, { tokens: numbers, more }, moreNode, wanted, kept) => {
    let last = null;
    for (const number of numbers) {
      if (kept.has(number)) continue;
      kept.add(number);
      let node = tokens.get(number);
      if (!node) tokens.set(number, (node = make("span", "nbl-token", null, String(number))));
      node.classList.toggle("nbl-wanted", number === wanted);
      const next = last ? last.nextSibling : parent.firstChild;
      if (node !== next) parent.insertBefore(node, next);
      last = node;
    }
    write(moreNode, more > 0 ? `+${more}` : "");
    if (parent.lastChild !== moreNode) parent.append(moreNode);
  };
  const drawWorkers = (group, { workers, compact, wanted }, kept) => {
    group.classList.toggle("nbl-cells", compact);
    while (cells.length > workers.length) cells.pop().node.remove();
    while (cells.length < workers.length) {
      const node = make("div", "", group);
      const id = make("i", "", node);
      const inside = make("span", "nbl-tokens", node);
      cells.push({ node, id, tokens: inside, more: make("span", "nbl-more", inside) });
    }
    workers.forEach((worker, i) => {
      const cell = cells[i];
      const className = `nbl-worker ${worker.look}`;
      if (cell.node.className !== className) cell.node.className = className;
      cell.node.title = `worker ${worker.id}: ${worker.state}`;
      write(cell.id, String(worker.id));
      place(cell.tokens, worker, cell.more, wanted, kept);
    });
  };
  const glide = (before) => {
    for (const [number, node] of tokens) {
      const from = before.get(number);
      if (!from) {
        node.animate?.([{ opacity: 0 }, { opacity: 1 }], 200);
        continue;
      }
      const to = node.getBoundingClientRect();
      const [dx, dy] = [from.x - to.x, from.y - to.y];
      if (dx || dy) node.animate?.([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }],
        { duration: GLIDE, easing: "ease-in-out" });
    }
  };

  return {
    update(path) {
      const alarms = path.boxes.filter((box) => box.alarm && box.id !== "loop").map((box) => box.alarm);
      note(alarms.join(" · "));
      const before = unfolded() && path.animate && !reducedMotion.matches
        ? new Map([...tokens].map(([number, node]) => [number, node.getBoundingClientRect()])) : null;
      const ids = path.boxes.map((box) => box.id).join();
      if (ids !== order) {
        root.replaceChildren();
        boxes.clear();
        tokens.clear();
        cells.length = 0;
        order = ids;
      }
      const kept = new Set();
      for (const box of path.boxes) {
        const parts = drawBox(box);
        if (box.id !== "workers") place(parts.tokens, box, parts.more, path.wanted, kept);
      }
      if (boxes.has("workers")) drawWorkers(boxes.get("workers").group, path, kept);
      for (const [number, node] of tokens) {
        if (kept.has(number)) continue;
        node.remove();
        tokens.delete(number);
      }
      if (before) glide(before);
    },
  };
}
