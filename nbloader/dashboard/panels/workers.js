// The table of workers, with buttons.

const CALM = 2000;  // ms in which rows that are sorted by changing values stay where they are

export function create(el, api) {
  const { make, write, button, Pending } = api;
  const rows = new Map();  // worker id -> parts
  const nodes = new Map();  // machine -> the row above those of its workers
  let workers = new Map();  // worker id -> what the kernel sent
  let heads = null, sorting = { column: 0, down: false }, sorted = 0, ordered = "", stuckBefore = 0;
  const scroll = make("div", "nbl-scroll", el);
  const table = make("table", "", scroll);
  table.setAttribute("aria-label", "Workers");
  const headRow = make("tr", "", make("thead", "", table));
  const body = make("tbody", "", table);
  const notes = make("p", "nbl-notes", el);

  const buildHeads = (columns) => {
    heads = columns.map(([name, tip], column) => {
      const node = make("th", "", headRow);
      node.scope = "col";
      button(node, name, name, () => {
        sorting = { column, down: sorting.column === column ? !sorting.down : column > 0 };  // largest first
        sorted = 0;
        order();
      }).title = `${tip}. Click to sort.`;
      return node;
    });
    make("td", "nbl-act", headRow).title = "What you can do to a worker while the cell runs";
  };
  const describe = (row) => {
    const parts = [row.text];
    if (row.worker?.exit) parts.push(row.worker.exit);
    if (row.worker?.output) parts.push(`Last lines of standard error:\n${row.worker.output}`);
    write(row.pre, parts.join("\n\n"));
  };
  const addRow = (worker) => {
    const node = make("tr");
    body.append(node);
    const cells = worker.cells.map((_, i) => make(i ? "td" : "th", i === 1 ? "nbl-state" : "", node));
    cells[0].scope = "row";
    const row = { node, cells, worker: null, text: "" };
    const actions = make("td", "nbl-act", node);
    row.stack = button(actions, "Stack", `Stack of worker ${worker.id}`, () => {
      row.detail.hidden = !row.detail.hidden;
      row.stack.setAttribute("aria-expanded", String(!row.detail.hidden));
      if (row.detail.hidden) return;
      row.text = "requesting the stack…";
      describe(row);
      api.request("stack", { worker: worker.id });
    });
    row.stack.setAttribute("aria-expanded", "false");
    const restart = button(actions, "Restart", `Restart worker ${worker.id}`, () => {
      const before = row.worker.incarnation;
      row.pending.begin("restarting…", () => workers.get(worker.id)?.incarnation !== before);
      api.command("restart", { worker: worker.id });
    });
    row.pending = new Pending(restart, "Restart");
    row.detail = make("tr", "nbl-detail");
    node.after(row.detail);
    row.detail.hidden = true;
    const cell = make("td", "", row.detail);
    cell.colSpan = heads.length + 1;
    row.pre = make("pre", "", cell);
    row.pre.tabIndex = 0;
    row.pre.setAttribute("role", "region");
    row.pre.setAttribute("aria-label", `Stack and last output of worker ${worker.id}`);
    return row;
  };
  const nodeRow = (name) => {
    if (!nodes.has(name)) {
      const row = make("tr", "nbl-node");
      const head = make("th", "", row, `${name} `);
      head.scope = "rowgroup";
      head.colSpan = heads.length + 1;
      nodes.set(name, { row, note: make("span", "", head) });
    }
    return nodes.get(name);
  };
  const order = () => {  // stuck ones first, then by the chosen column; rows do not move below the pointer
    const stuck = [...workers.values()].filter((w) => w.stuck).length;
    const same = stuck === stuckBefore && workers.size === (body.childElementCount - nodes.size) / 2;
    if (same && (Date.now() - sorted < CALM || body.matches(":hover"))) return;
    [stuckBefore, sorted] = [stuck, Date.now()];
    const { column, down } = sorting;
    const compare = (a, b) => {
      const [x, y] = [a.order[column], b.order[column]];
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    };
    const byNode = (a, b) => ((a.node ?? "") < (b.node ?? "") ? -1 : Number((a.node ?? "") > (b.node ?? "")));
    const listed = [...workers.values()].sort((a, b) => byNode(a, b) || b.stuck - a.stuck || compare(a, b) || a.id - b.id);
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending"));
    const wanted = listed.map((w) => `${w.id} ${w.node ?? ""}`).join();
    if (wanted === ordered && same) return;
    ordered = wanted;
    const focused = body.getRootNode().activeElement;  // moving a node takes the focus from it
    let node = "";
    for (const worker of listed) {
      if ((worker.node ?? "") !== node) body.append(nodeRow(node = worker.node).row);
      body.append(rows.get(worker.id).node, rows.get(worker.id).detail);
    }
    for (const [name, parts] of nodes) {
      if (listed.some((worker) => worker.node === name)) continue;
      parts.row.remove();
      nodes.delete(name);
    }
    if (body.contains(focused)) focused.focus();
  };
  const summarize = ({ errors, deaths }) => {
    const stuck = [...workers.values()].filter((w) => w.stuck).map((w) => w.id).sort((a, b) => a - b);
    const parts = [workers.size === 1 ? "1 worker" : `${workers.size} workers`];
    if (stuck.length) parts.push(`▲ stuck: ${stuck.slice(0, 6).join(", ")}${stuck.length > 6 ? ", …" : ""}`);
    if (errors) parts.push(errors === 1 ? "✕ 1 batch failed" : `✕ ${errors} batches failed`);
    if (deaths) parts.push(`✕ ${deaths} died`);
    api.note(workers.size ? parts.join(" · ") : "none", parts.length > 1);
  };

  return {
    update(data, { entries, reset }) {
      if (!heads) buildHeads(data.columns);
      if (reset) workers = new Map();
      for (const worker of entries) workers.set(worker.id, worker);
      for (const id of [...workers.keys()]) if (id >= data.count) workers.delete(id);
      scroll.hidden = !workers.size;
      for (const [id, row] of rows) {
        if (workers.has(id)) continue;
        row.node.remove();
        row.detail.remove();
        rows.delete(id);
      }
      summarize(data);
      if (!api.unfolded()) return;
      for (const worker of workers.values()) {
        if (!rows.has(worker.id)) rows.set(worker.id, addRow(worker));
        const row = rows.get(worker.id);
        row.pending.check();
        if (row.worker === worker) continue;
        row.worker = worker;
        row.node.className = worker.look;
        worker.cells.forEach((text, i) => {
          write(row.cells[i], text);
          row.cells[i].title = text;
        });
        row.cells.at(-1).title = worker.exit ?? "";
        if (!row.detail.hidden) describe(row);
      }
      order();
      for (const [name, { note }] of nodes) write(note, data.nodes?.[name] ?? "");
      write(notes, data.notes.join(" · "));
    },
    receive({ worker, stack }) {
      const row = rows.get(worker);
      if (!row) return;
      row.text = stack;
      describe(row);
    },
  };
}
