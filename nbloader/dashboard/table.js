// The table of workers.

const CALM_SORT = 2000;  // ms in which rows that are sorted by what changes stay where they are

class Table {
  constructor(section, columns, command) {
    this.section = section;
    this.command = command;
    this.rows = new Map();
    this.scroll = make("div", "nbl-scroll", section.body);
    const table = make("table", "", this.scroll);
    table.setAttribute("aria-label", "Workers");
    const head = make("tr", "", make("thead", "", table));
    this.sorting = { column: 0, down: false };
    this.sorted = 0;
    this.heads = columns.map((name, i) => {
      const node = make("th", "", head);
      node.scope = "col";
      button(node, name, name, () => {
        const { column, down } = this.sorting;
        this.sorting = { column: i, down: column === i ? !down : i > 0 };  // first the most
        this.sorted = 0;
        this.order(this.view);
      }).title = `Sort by ${name.toLowerCase()}`;
      return node;
    });
    make("td", "nbl-act", head);
    this.width = columns.length + 1;
    this.body = make("tbody", "", table);
    this.notes = make("p", "nbl-notes", section.body);
  }
  update(view) {
    this.scroll.hidden = !view.workers.length;
    const alive = new Set(view.workers.map((w) => w.id));
    for (const [id, row] of this.rows) {
      if (alive.has(id)) continue;
      row.node.remove();
      row.detail.remove();
      this.rows.delete(id);
    }
    this.view = view;
    this.note(view);
    if (!this.section.open) return;
    for (const worker of view.workers) {
      if (!this.rows.has(worker.id)) this.rows.set(worker.id, this.row(worker));
      const row = this.rows.get(worker.id);
      row.pending.check(view);
      if (row.worker === worker) continue;
      row.worker = worker;
      row.node.className = look(worker.state);
      worker.cells.forEach((text, i) => {
        write(row.cells[i], text);
        row.cells[i].title = text;
      });
      row.cells.at(-1).title = worker.exit ? `the one before ${worker.exit}` : "";
      if (!row.detail.hidden) this.tell(row);
    }
    this.order(view);
    write(this.notes, view.notes.join(" · "));
  }
  note({ workers, deaths }) {
    const stuck = workers.filter((w) => w.state === "stuck").map((w) => w.id);
    const parts = [workers.length === 1 ? "1 worker" : `${workers.length} workers`];
    if (stuck.length) parts.push(`▲ stuck: ${stuck.slice(0, 6).join(", ")}${stuck.length > 6 ? ", …" : ""}`);
    if (deaths) parts.push(`✕ ${deaths} died`);
    write(this.section.note, workers.length ? parts.join(" · ") : "none");
    this.section.note.classList.toggle("nbl-warned", parts.length > 1);
  }
  order({ workers }) {  // stuck ones first, then as the heads say; what a hand is about to click on stays where it is
    const stuck = workers.filter((w) => w.state === "stuck").length;
    const same = stuck === this.stuck && workers.length === this.body.childElementCount / 2;
    if (same && (Date.now() - this.sorted < CALM_SORT || this.body.matches(":hover"))) return;
    [this.stuck, this.sorted] = [stuck, Date.now()];
    const { column, down } = this.sorting;
    const value = ({ id, age, cells }) => (column === 0 ? id : column === 1 ? cells[1] : column === 2 ? age ?? -1
      : parseFloat(cells[column].replaceAll(",", "")) || 0);
    const by = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (down ? -1 : 1);
    const last = (w) => Number(w.state !== "stuck");
    const ids = [...workers].sort((a, b) => last(a) - last(b) || by(a, b) || a.id - b.id).map((w) => w.id);
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", i !== column ? "none" : down ? "descending" : "ascending"));
    if (ids.join() === this.ordered) return;
    this.ordered = ids.join();
    const busy = document.activeElement;  // to move a node takes the focus from it
    for (const id of ids) this.body.append(this.rows.get(id).node, this.rows.get(id).detail);
    if (this.body.contains(busy)) busy.focus();
  }
  row(worker) {
    const node = make("tr");
    this.body.append(node);
    const cells = worker.cells.map((_, i) => make(i ? "td" : "th", i === 1 ? "nbl-state" : "", node));
    cells[0].scope = "row";
    const row = { node, cells, worker: null, text: "" };
    const act = make("td", "nbl-act", node);
    row.stack = button(act, "Stack", `Where worker ${worker.id} stands`, () => {
      row.detail.hidden = !row.detail.hidden;
      row.stack.setAttribute("aria-expanded", String(!row.detail.hidden));
      if (row.detail.hidden) return;
      row.text = "asking…";
      this.tell(row);
      this.command("stack", worker.id);
    });
    row.stack.setAttribute("aria-expanded", "false");
    const restart = button(act, "Restart", `Restart worker ${worker.id}`, () => {
      const was = row.worker.incarnation;
      row.pending.begin("restarting…", (view) => view.workers.find((w) => w.id === worker.id)?.incarnation !== was);
      this.command("restart", worker.id);
    });
    row.pending = new Pending(restart, "Restart");
    row.detail = make("tr", "nbl-detail");
    node.after(row.detail);
    row.detail.hidden = true;
    const cell = make("td", "", row.detail);
    cell.colSpan = this.width;
    row.pre = make("pre", "", cell);
    row.pre.tabIndex = 0;
    row.pre.setAttribute("role", "region");
    row.pre.setAttribute("aria-label", `Stack and last output of worker ${worker.id}`);
    return row;
  }
  tell(row) {
    const parts = [row.text];
    if (row.worker?.exit) parts.push(`The one before ${row.worker.exit}.`);
    if (row.worker?.output) parts.push(`Standard error ended with:\n${row.worker.output}`);
    write(row.pre, parts.join("\n\n"));
  }
  stack(worker, text) {
    const row = this.rows.get(worker);
    if (!row) return;
    row.text = text;
    this.tell(row);
  }
}
