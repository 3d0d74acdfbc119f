// The log of events, newest first, with a filter.

const KINDS = { "": "all events", worker: "workers", error: "errors", epoch: "epochs", command: "commands" };

export function create(el, { make, describe, note, unfolded }) {
  let lines = [];
  const bar = make("div", "nbl-actions", el);
  const kind = make("select", "", bar);
  describe(kind, "Which events to list");
  for (const [value, label] of Object.entries(KINDS)) make("option", "", kind, label).value = value;
  const words = make("input", "", bar);
  Object.assign(words, { type: "search", placeholder: "filter" });
  describe(words, "List only events that contain");
  for (const event of ["keydown", "keyup"]) words.addEventListener(event, (e) => e.stopPropagation());
  const list = make("ol", "nbl-log", el);
  list.tabIndex = 0;
  list.setAttribute("aria-label", "Events, newest first");

  const draw = () => {
    if (!unfolded()) return;
    const text = words.value.toLowerCase();
    const shown = lines.filter((line) => (!kind.value || line.kind === kind.value) && line.text.toLowerCase().includes(text));
    const zero = lines[0]?.ms ?? 0;
    list.replaceChildren(...shown.reverse().map((line) => {
      const item = make("li", `nbl-line-${line.kind}`);
      make("span", "nbl-note", item, `${((line.ms - zero) / 1000).toFixed(2)} s`);
      make("span", "nbl-kind", item, line.kind === "error" ? "▲ error" : line.kind);
      make("span", "", item, line.text);
      return item;
    }));
    if (!shown.length) make("li", "nbl-note", list, "no such event");
  };
  kind.addEventListener("change", draw);
  words.addEventListener("input", draw);
  let drawn = false;

  return {
    update({ lines: kept }, { entries, reset }) {
      if (reset) lines = [];
      if (entries.length || reset) drawn = false;
      lines.push(...entries);
      lines.splice(0, lines.length - kept);
      note(lines.at(-1)?.text ?? "none yet");
      if (!drawn) draw();
      drawn = unfolded();
    },
  };
}
