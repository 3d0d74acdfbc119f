// Samples, and the log of events.

const LINES = 300;

// The slowest and the failed samples. A click copies the index.
class Samples {
  constructor(section) {
    this.section = section;
    const columns = make("div", "nbl-columns", section.body);
    this.slowest = this.list(columns, "Slowest, of the last three epochs");
    this.failed = this.list(columns, "Failed");
    this.said = make("p", "nbl-said", section.body);
    this.said.setAttribute("role", "status");
  }
  list(parent, title) {
    const box = make("div", "", parent);
    make("div", "nbl-box-title", box, title);
    return make("ul", "nbl-samples", box);
  }
  update({ slowest, failed, failures }) {
    const parts = [];
    if (slowest.length) parts.push(`slowest ${slowest[0][0].slice(0, 24)}: ${slowest[0][1]}`);
    if (failures) parts.push(`▲ ${failures} failed`);
    write(this.section.note, parts.join(" · "));
    this.section.note.classList.toggle("nbl-warned", failures > 0);
    if (!this.section.open) return;
    this.fill(this.slowest, slowest, "no sample yet");
    this.fill(this.failed, failed, "none");
  }
  fill(list, items, otherwise) {
    const key = JSON.stringify(items);
    if (list.dataset.key === key) return;
    list.dataset.key = key;
    list.replaceChildren();
    if (!items.length) make("li", "nbl-note", list, otherwise);
    for (const [index, what, where, who] of items) {
      const item = make("li", "", list);
      const node = button(item, index, `Copy the index ${index}`, async () => {
        await copy(index);
        write(this.said, `Copied: ${index}`);
      });
      node.title = "Copy the index";
      make("span", "", item, what);
      make("span", "nbl-note", item, `${where}, ${who}`);
    }
  }
}

class Log {
  constructor(section) {
    this.section = section;
    this.lines = [];
    const bar = make("div", "nbl-actions", section.body);
    this.kind = make("select", "", bar);
    this.kind.setAttribute("aria-label", "Which events to list");
    for (const [value, label] of [["", "all events"], ["worker", "workers"], ["error", "errors"], ["epoch", "epochs"],
      ["command", "commands"]]) {
      make("option", "", this.kind, label).value = value;
    }
    this.words = make("input", "", bar);
    Object.assign(this.words, { type: "search", placeholder: "filter" });
    this.words.setAttribute("aria-label", "List only events that contain");
    for (const event of ["keydown", "keyup"]) this.words.addEventListener(event, (e) => e.stopPropagation());
    this.list = make("ol", "nbl-log", section.body);
    this.list.tabIndex = 0;
    this.list.setAttribute("aria-label", "Events, newest first");
    this.kind.addEventListener("change", () => this.draw());
    this.words.addEventListener("input", () => this.draw());
  }
  update(lines, full) {
    if (full) this.lines = [];
    if (!lines.length && !full) return;
    this.lines.push(...lines);
    this.lines.splice(0, this.lines.length - LINES);
    const last = this.lines.at(-1);
    write(this.section.note, last ? last[2] : "none yet");
    this.draw();
  }
  draw() {
    if (!this.section.open) return;
    const kind = this.kind.value, words = this.words.value.toLowerCase();
    const shown = this.lines.filter(([, k, text]) => (!kind || k === kind) && text.toLowerCase().includes(words));
    const zero = this.lines[0]?.[0] ?? 0;
    this.list.replaceChildren(...shown.reverse().map(([ms, k, text]) => {
      const item = make("li", `nbl-line-${k}`);
      make("span", "nbl-note", item, `${((ms - zero) / 1000).toFixed(2)} s`);
      make("span", "nbl-kind", item, k === "error" ? "▲ error" : k);
      make("span", "", item, text);
      return item;
    }));
    if (!shown.length) make("li", "nbl-note", this.list, "no such event");
  }
}
