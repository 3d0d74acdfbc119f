// The lines of code that take the workers' time: a switch, a table, and a flame graph. lines.py says what is in them.

const LEVEL = 19;  // pixels from one level of the flame graph to the next

export function create(el, { make, write, button, note, command, unfolded, Pending }) {
  const line = make("div", "nbl-controls", el);
  const actions = make("div", "nbl-actions", line);
  let profiling = false;
  const toggle = button(actions, "Sample lines", "Sample the lines that the workers execute", () => {
    const wanted = !profiling;
    pending.begin(wanted ? "starting…" : "stopping…", (data) => data.profiling === wanted);
    command("profile", { value: wanted });
  });
  toggle.title = "Start or stop sampling the workers while epochs run. A start drops earlier samples";
  const pending = new Pending(toggle, "Sample lines");
  const text = make("span", "nbl-label", line);
  const parts = make("div", "nbl-lines", el);
  let rows = null, flame = null;
  const blocks = [];

  const build = (columns) => {  // with the first samples
    const table = make("table", "", make("div", "nbl-scroll", parts));
    table.setAttribute("aria-label", "Lines of code");
    const head = make("tr", "", make("thead", "", table));
    for (const [name, tip] of columns) Object.assign(make("th", "", head, name), { scope: "col", title: tip });
    rows = make("tbody", "", table);
    const keys = make("div", "nbl-keys", parts);
    make("span", "", keys, "Each line calls the ones below it. The width is the share of the time");
    for (const name of ["computing", "waiting"]) make("span", `nbl-key nbl-key-${name}`, keys, name);
    flame = make("div", "nbl-flame", parts);
    flame.setAttribute("role", "img");
  };
  const addRow = () => {
    const node = make("tr", "", rows);
    const cells = [make("th", "", node), ...[1, 2, 3, 4].map(() => make("td", "", node))];
    cells[0].scope = "row";
    cells[3].className = "nbl-source";
    const bar = make("span", "nbl-share", cells[0]);
    return { node, cells, share: make("span", "", cells[0]), bars: ["computing", "waiting"].map((name) => make("i", `nbl-${name}`, bar)) };
  };
  const drawn = [];
  const drawRow = ({ shares, bars, source, place, tip }, i) => {
    const row = drawn[i] ?? (drawn[i] = addRow());
    write(row.share, shares[0]);
    bars.forEach((width, k) => { row.bars[k].style.width = `${width}%`; });
    [shares[1], shares[2], source, place].forEach((value, k) => write(row.cells[k + 1], value));
    row.cells[3].title = source;
    row.cells[4].title = tip;
  };
  const drawBlock = ([left, width, level, computing, label, tip], i) => {
    const node = blocks[i] ?? (blocks[i] = make("div", "", flame));
    Object.assign(node.style, { left: `${left}%`, width: `${width}%`, top: `${level * LEVEL}px` });
    node.style.setProperty("--nbl-split", `${computing}%`);
    write(node, label);
    const title = `${label}\n${tip}`;
    if (node.title !== title) node.title = title;
  };
  const cut = (nodes, count) => { for (const node of nodes.splice(count)) (node.node ?? node).remove(); };

  return {
    update(data) {
      profiling = data.profiling;
      note(data.first || (profiling ? "sampling" : "no samples"));
      if (!unfolded()) return;
      pending.idle = profiling ? "Stop sampling" : data.rows.length ? "Sample again" : "Sample lines";
      pending.check(data);
      write(text, data.hint || data.summary);
      parts.hidden = !data.rows.length;
      if (!data.rows.length) return;
      if (!rows) build(data.columns);
      data.rows.forEach(drawRow);
      cut(drawn, data.rows.length);
      data.blocks.forEach(drawBlock);
      cut(blocks, data.blocks.length);
      flame.style.height = `${data.levels * LEVEL}px`;
      flame.setAttribute("aria-label", `Flame graph. The line with the largest share: ${data.first}`);
    },
  };
}
