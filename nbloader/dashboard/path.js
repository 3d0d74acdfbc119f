// The path of a batch: boxes, and batches that move from one to the next (dashboard/path.py says which is where).

const CALM = 25;  // batches a second; of more no eye follows one
const still = matchMedia("(prefers-reduced-motion: reduce)");

class PathView {
  constructor(section) {
    this.section = section;
    this.root = make("div", "nbl-path", section.body);
    this.root.setAttribute("role", "list");
    this.root.setAttribute("aria-label", "The path of a batch");
    this.boxes = new Map();
    this.crew = [];
    this.tokens = new Map();
  }
  update({ boxes, crew, wanted }, rate) {
    const before = this.section.open && rate < CALM && !still.matches
      ? new Map([...this.tokens].map(([number, node]) => [number, node.getBoundingClientRect()])) : null;
    const ids = boxes.map((box) => box.id).join();
    if (ids !== this.ids) {
      this.root.replaceChildren();
      this.boxes.clear();
      this.tokens.clear();
      this.crew = [];
      this.ids = ids;
    }
    const kept = new Set();
    for (const box of boxes) {
      const parts = this.box(box);
      if (box.id !== "workers") this.place(parts.tokens, box.tokens, parts.more, box.more, wanted, kept);
    }
    if (this.boxes.has("workers")) this.workers(crew, wanted, kept);
    for (const [number, node] of this.tokens) {
      if (kept.has(number)) continue;
      node.remove();
      this.tokens.delete(number);
    }
    if (before) this.glide(before);
  }
  box({ id, title, note, mark, alarm, off }) {
    if (!this.boxes.has(id)) {
      const node = make("div", "", this.root);
      node.setAttribute("role", "listitem");
      const parts = { node, title: make("div", "nbl-box-title", node) };
      if (id === "workers") parts.crew = make("div", "nbl-crew", node);
      else {
        parts.tokens = make("div", "nbl-tokens", node);
        parts.more = make("span", "nbl-more", parts.tokens);
      }
      parts.note = make("div", "nbl-note", node);
      parts.alarm = make("div", "nbl-alarm", node);
      this.boxes.set(id, parts);
    }
    const parts = this.boxes.get(id);
    parts.node.className = `nbl-box nbl-box-${id}${mark ? ` nbl-${mark}` : ""}${off ? " nbl-off" : ""}`;
    write(parts.title, title);
    write(parts.note, note);
    write(parts.alarm, alarm);
    return parts;
  }
  workers(crew, wanted, kept) {
    const parent = this.boxes.get("workers").crew;
    parent.classList.toggle("nbl-cells", crew.length > 8);
    while (this.crew.length > crew.length) this.crew.pop().node.remove();
    while (this.crew.length < crew.length) {
      const node = make("div", "", parent);
      const id = make("i", "", node);
      const tokens = make("span", "nbl-tokens", node);
      this.crew.push({ node, id, tokens, more: make("span", "nbl-more", tokens) });
    }
    crew.forEach(({ id, state, tokens, more }, i) => {
      const member = this.crew[i];
      const name = `nbl-member ${look(state)}`;
      if (member.node.className !== name) member.node.className = name;
      member.node.title = `worker ${id}: ${state}`;
      write(member.id, String(id));
      this.place(member.tokens, tokens, member.more, more, wanted, kept);
    });
  }
  place(parent, numbers, moreNode, more, wanted, kept) {
    let last = null;
    for (const number of numbers) {
      if (kept.has(number)) continue;
      kept.add(number);
      let node = this.tokens.get(number);
      if (!node) this.tokens.set(number, (node = make("span", "nbl-token", null, String(number))));
      node.classList.toggle("nbl-wanted", number === wanted);
      const follows = last ? last.nextSibling : parent.firstChild;
      if (node !== follows) parent.insertBefore(node, follows);
      last = node;
    }
    write(moreNode, more > 0 ? `+${more}` : "");
    if (parent.lastChild !== moreNode) parent.append(moreNode);
  }
  glide(before) {
    for (const [number, node] of this.tokens) {
      const from = before.get(number);
      if (!from) {
        node.animate?.([{ opacity: 0 }, { opacity: 1 }], 200);
        continue;
      }
      const to = node.getBoundingClientRect();
      const [dx, dy] = [from.x - to.x, from.y - to.y];
      if (dx || dy) node.animate?.([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }],
        { duration: 230, easing: "ease-in-out" });
    }
  }
}
