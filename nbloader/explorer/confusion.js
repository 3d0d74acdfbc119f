// A table of how often the values of two columns occur together, such as labels and predictions; a click on a cell lists
// its samples. This text stands before `statistics.js` in the module.

class Confusion {
  // `api`: request(), choose(filters) lists samples.
  constructor(parent, api) {
    this.api = api;
    this.node = make("div", "", parent);
    const bar = make("div", "nbx-tools", this.node);
    this.selects = ["rows", "columns"].map((what) => {
      const node = make("select", "", bar);
      node.setAttribute("aria-label", `field in the ${what} of the table of pairs`);
      node.addEventListener("change", api.request);
      return node;
    });
    bar.insertBefore(make("span", "nbl-note", null, "against"), this.selects[1]);
    this.sentence = make("p", "", this.node);
    this.table = make("table", "nbx-confusion", make("div", "nbx-wide", this.node));
    this.node.hidden = true;
  }
  get pair() {
    return this.node.hidden ? ["", ""] : this.selects.map((node) => node.value);
  }
  update(data, columns) {
    keepFocus(this.table, () => this.fill(data, columns), () => this.selects[0]);
  }
  fill(data, columns) {
    this.table.replaceChildren();
    if (!data) return;
    const { classes, counts } = data, [rows, across] = this.pair;
    const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
    const total = sum(counts.map(sum)), equal = sum(counts.map((line, at) => line[at]));
    write(this.sentence, total ? `${rows} and ${across} are the same in ${whole(equal)} of ${whole(total)} samples (${((100 * equal) / total).toFixed(1)}%).` : "No sample has both.");
    const most = Math.max(1, ...counts.flat());
    const head = make("tr", "", make("thead", "", this.table));
    make("td", "", head, `${rows} ↓ ${across} →`).className = "nbl-note";
    for (const name of classes) make("th", "", head, name).scope = "col";
    const body = make("tbody", "", this.table);
    const chosen = (column, name) => (columns.find((each) => each.name === column)?.labels ? [name] : [Number(name), Number(name)]);
    counts.forEach((line, at) => {
      const row = make("tr", "", body);
      make("th", "", row, classes[at]).scope = "row";
      line.forEach((count, to) => {
        const cell = make("td", at === to ? "nbx-equal" : "nbx-unequal", row);
        if (!count) return;
        const filters = { [rows]: chosen(rows, classes[at]), [across]: chosen(across, classes[to]) };
        button(cell, whole(count), `${rows} ${classes[at]}, ${across} ${classes[to]}: list ${whole(count)}`, () => this.api.choose(filters));
        cell.style.setProperty("--nbx-share", `${Math.round(8 + (32 * count) / most)}%`);
      });
    });
  }
}
