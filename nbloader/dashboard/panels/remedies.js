// What to write instead of the slowest lines: a button, its progress, and a table. remedies.py says what is in them.

export function create(el, { make, write, button, copy, note, request, unfolded, Pending }) {
  const line = make("div", "nbl-controls", el);
  const actions = make("div", "nbl-actions", line);
  let number = 0, drawn = null;
  const start = button(actions, "Try", "Try faster code for the slowest lines", () => {
    const before = number;
    pending.begin("trying…", (data) => data.number > before && !data.running);
    request("search", {});
  });
  start.title = "Takes some seconds and a core. Batches and your code stay as they are";
  const pending = new Pending(start, "Try");
  const bar = make("div", "nbl-bar", line);
  bar.setAttribute("role", "progressbar");
  bar.setAttribute("aria-label", "Progress of the search");
  const fill = make("span", "", bar);
  const text = make("span", "nbl-label", line);
  text.setAttribute("role", "status");
  const scroll = make("div", "nbl-scroll nbl-remedies", el);
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "What to write instead");
  let urls = [], frames = [];

  const clear = () => {
    urls.forEach(URL.revokeObjectURL);
    [urls, frames] = [[], []];
    scroll.replaceChildren();
  };
  const draw = ({ columns, rows }) => {
    clear();
    if (!rows.length) return;
    const table = make("table", "", scroll);
    table.setAttribute("aria-label", "Remedies");
    const head = make("tr", "", make("thead", "", table));
    for (const [name, tip] of columns) Object.assign(make("th", "", head, name), { scope: "col", title: tip });
    const body = make("tbody", "", table);
    rows.forEach((row, i) => drawRow(body, row, i, columns.length));
  };
  const drawRow = (body, { choice, share, source, place, why, instead, cells, said, code, pictures }, i, width) => {
    if (choice) make("td", "", make("tr", "nbl-detail", body), choice).colSpan = width;
    const node = make("tr", "", body);
    const first = make("th", "", node);
    first.scope = "row";
    make("span", "", first, `${share} `);
    make("code", "", first, source).title = source;
    make("div", "nbl-note", first, place);
    cells.forEach((cell, k) => make("td", k === 3 ? "nbl-prose" : "", node, cell));
    if (!cells.length) Object.assign(make("td", "nbl-prose", node, said), { colSpan: width - 1 });
    const below = make("td", "", make("tr", "nbl-detail", body));
    below.colSpan = width;
    make("div", "", below, `${why} ${instead}`);
    if (code) {
      const details = make("details", "", below);
      const summary = make("summary", "", details, "Code");
      summary.title = "The code to paste";
      const copied = button(details, "Copy", "Copy the code", async () => {
        await copy(code);
        write(copied, "Copied");
      });
      copied.title = "Copy the code to paste it into your cell";
      const pre = make("pre", "", details, code);
      pre.tabIndex = 0;
      pre.setAttribute("role", "region");
      pre.setAttribute("aria-label", "The code to paste");
    }
    if (pictures) {
      frames[i] = make("div", "nbl-pictures", below);
      request("pictures", { number, row: i });
    }
  };

  return {
    update(data) {
      note(data.running ? data.text : data.first);
      if (!unfolded()) return;
      number = data.number;
      pending.idle = data.rows.length ? "Try again" : "Try";
      if (data.running) pending.show("trying…", true);
      else pending.check(data);
      start.disabled = !data.ready && !data.running;
      bar.hidden = !data.running;
      bar.setAttribute("aria-valuenow", String(Math.round(100 * data.done)));
      fill.style.width = `${100 * data.done}%`;
      write(text, data.text);
      const key = JSON.stringify([data.number, data.rows]);
      if (key === drawn) return;
      drawn = key;
      draw(data);
    },
    receive({ number: of, row, names }, buffers) {
      const frame = frames[row];
      if (of !== number || !frame || frame.childElementCount) return;
      names.forEach((name, k) => {
        const figure = make("figure", "", frame);
        const image = make("img", "", figure);
        image.alt = name;
        image.src = URL.createObjectURL(new Blob([buffers[k]], { type: "image/png" }));
        urls.push(image.src);
        make("figcaption", "nbl-note", figure, name);
      });
    },
    remove: clear,
  };
}
