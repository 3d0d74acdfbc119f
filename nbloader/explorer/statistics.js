// Statistics of the samples that were read: problems, histograms that filter one another, a scatter plot, costs.
// `../table.py` computes them. This text stands before `explorer.js` in the module.

const REFRESH = 700;  // ms between two requests for what has changed; while dragging, requests follow one another
const NEAR = 8;  // pixels from a point that is meant
const PROBLEMS = { failed: "failed", duplicate: "duplicate", alike: "alike", "not finite": "not finite", missing: "with missing values", constant: "constant", shape: "of another shape" };

const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1);
  return value.toLocaleString("en-US", { maximumSignificantDigits: size >= 100 ? 4 : 3 });
};

// What was measured while a sample was read. Samples are not grouped by it unless the user asks.
const MEASURED = ["seconds", "cpu_seconds", "worker"];

// What stands on an axis: times and bytes in their units.
const valueText = (name, value) => (name === "seconds" || name === "cpu_seconds" ? time(value) : name === "nbytes" ? bytes(value) : short(value));

// Whether all values read the same.
const narrow = ({ name, all, labels, edges }) => all.length === 1 || (!labels && valueText(name, edges[0]) === valueText(name, edges.at(-1)));

class Histogram {
  constructor(parent, name, onfilter) {
    Object.assign(this, { name, onfilter, cursor: null, anchor: null });
    this.node = make("div", "nbx-hist", parent);
    this.node.tabIndex = 0;
    this.node.setAttribute("role", "group");
    const head = make("div", "nbx-hist-head", this.node);
    make("strong", "", head, name).title = name;
    this.note = make("span", "nbl-note", head);
    this.clear = button(head, "×", `Show all values of ${name}`, () => this.choose(null));
    this.clear.hidden = true;
    this.picture = svg("svg", this.node, { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.axis = make("div", "nbl-note nbx-axis", this.node);
    let from = null;
    const binAt = (event) => {
      const box = this.picture.getBoundingClientRect();
      return Math.min(this.count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * this.count)));
    };
    this.picture.addEventListener("pointerdown", (event) => {
      from = binAt(event);
      this.before = this.chosen?.join();
      this.picture.setPointerCapture(event.pointerId);
      this.choose([from, from]);
    });
    this.picture.addEventListener("pointermove", (event) => {
      if (from === null) this.node.title = this.describe(binAt(event));
      else this.choose([Math.min(from, binAt(event)), Math.max(from, binAt(event))]);
    });
    this.picture.addEventListener("pointerup", () => {
      if (from !== null && this.chosen?.join() === this.before) this.choose(null);  // a click on what is chosen
      from = null;
    });
  }
  describe(bin) {
    const { labels, edges, all, passed } = this.data;
    const what = labels ? labels[bin] : this.data.whole ? valueText(this.name, edges[bin]) : `${valueText(this.name, edges[bin])} to ${valueText(this.name, edges[bin + 1])}`;
    return `${what}: ${whole(passed[bin])} of ${whole(all[bin])}`;
  }
  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      this.cursor = Math.min(this.count - 1, Math.max(0, this.cursor === null ? (step > 0 ? 0 : this.count - 1) : this.cursor + step));
      if (!event.shiftKey || this.anchor === null) this.anchor = this.cursor;
      this.choose([Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor)]);
    } else if (["Escape", "Delete", "Backspace"].includes(event.key) && this.chosen) {
      this.cursor = this.anchor = null;
      this.choose(null);
    } else return false;
    return true;
  }
  choose(bins) {
    if (bins?.join() === this.chosen?.join()) return;
    this.chosen = bins;
    this.draw();
    const { labels, edges } = this.data;
    if (!bins) this.onfilter(this.name, null);
    else if (labels) this.onfilter(this.name, labels.slice(bins[0], bins[1] + 1));
    else {
      const high = edges[bins[1] + 1];  // belongs to the next bin, unless there is none
      this.onfilter(this.name, [edges[bins[0]], bins[1] === this.count - 1 ? high : high - Math.abs(high) * 1e-12 - 1e-300]);
    }
  }
  update(data) {
    const same = this.data && JSON.stringify([data.edges, data.labels]) === JSON.stringify([this.data.edges, this.data.labels]);
    this.data = data;
    if (!same) this.build();
    this.draw();
  }
  get count() {
    return this.data.all.length;
  }
  build() {
    this.picture.replaceChildren();
    this.picture.setAttribute("viewBox", `0 0 ${this.count} 40`);
    this.band = svg("rect", this.picture, { y: 0, height: 40, class: "nbx-band" });
    this.bars = this.data.all.map((_, x) => ["nbx-all", ""].map((name) => svg("rect", this.picture, { class: name, x: x + 0.06, width: 0.88 })));
    const { labels, edges } = this.data;
    const few = labels && labels.length <= 4 && labels.every((text) => text.length < 12);
    const integers = !labels && this.data.whole;  // each has a bar
    const ends = (low, high) => [low, high].map((edge) => valueText(this.name, edge));
    const texts = integers ? ends(edges[0], edges.at(-2)) : few ? labels : labels ? [labels[0], ...(labels.length > 1 ? [labels.at(-1)] : [])] : ends(edges[0], edges.at(-1));
    if (this.data.logarithmic) texts.splice(1, 0, "logarithmic");
    this.axis.replaceChildren(...texts.map((text) => make("span", "", null, text)));
    this.axis.classList.toggle("nbx-few", !!few);
  }
  draw() {
    const { all, passed, missing, mean, labels } = this.data;
    const most = Math.max(...all, 1);
    this.bars.forEach((pair, x) => pair.forEach((bar, kind) => {
      const count = (kind ? passed : all)[x];
      const high = count ? Math.max(0.8, (40 * count) / most) : 0;
      bar.setAttribute("y", 40 - high);
      bar.setAttribute("height", high);
    }));
    const [from, to] = this.chosen ?? [0, -1];
    this.band.setAttribute("x", from);
    this.band.setAttribute("width", Math.max(0, to - from + 1));
    keepFocus(this.node, () => { this.clear.hidden = !this.chosen; }, () => this.node);
    const kept = this.chosen ? all.slice(from, to + 1).reduce((sum, count) => sum + count, 0) : null;
    const facts = kept !== null ? `${whole(kept)} chosen` : labels ? `${labels.length} ${labels.length === 1 ? "value" : "values"}` : mean !== null ? `mean ${valueText(this.name, mean)}` : "";
    write(this.note, missing ? `${facts} · ${whole(missing)} without` : facts);
    this.node.setAttribute("aria-label", `Histogram of ${this.name}, ${this.note.textContent}. Left and right arrows choose values, with Shift several, Escape shows all.`);
  }
}

class Scatter {
  constructor(parent, api) {
    Object.assign(this, { api, points: null, drag: null, current: null });
    const bar = make("div", "nbx-tools", parent);
    this.selects = ["horizontally", "vertically"].map((how) => {
      const node = make("select", "", bar);
      node.setAttribute("aria-label", `field that is drawn ${how}`);
      node.addEventListener("change", api.request);
      return node;
    });
    bar.insertBefore(make("span", "nbl-note", null, "against"), this.selects[1]);
    this.lasso = button(bar, "Lasso", "Drag around samples to select them", () => {
      this.lasso.setAttribute("aria-pressed", String(this.lasso.getAttribute("aria-pressed") !== "true"));
    });
    this.lasso.setAttribute("aria-pressed", "false");
    this.frame = make("div", "nbx-scatter", parent);
    this.canvas = make("canvas", "", this.frame);
    this.canvas.setAttribute("role", "img");
    this.canvas.tabIndex = 0;
    this.canvas.nbxKeys = (event) => this.key(event);
    this.canvas.addEventListener("blur", () => this.point(null));
    this.said = make("div", "nbl-note", parent);
    this.said.setAttribute("aria-live", "polite");
    this.listen();
  }
  get fields() {
    return this.selects.map((node) => node.value);
  }
  place({ logarithmic, low, high, categories }, value, length, reverse) {
    const [from, to, at] = logarithmic ? [Math.log(low), Math.log(high), Math.log(value)] : [low, high, value + (categories ? 0.5 : 0)];
    const share = to > from ? (at - from) / (to - from) : 0.5;
    return 6 + (reverse ? 1 - share : share) * (length - 12);
  }
  value({ logarithmic, low, high }, pixel, length, reverse, margin = 0) {
    let share = Math.min(1 + margin, Math.max(-margin, (pixel - 6) / (length - 12)));
    if (reverse) share = 1 - share;
    return logarithmic ? Math.exp(Math.log(low) + share * (Math.log(high) - Math.log(low))) : low + share * (high - low);
  }
  update(content, buffers) {
    const read = (buffer, Type) => new Type(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength));
    this.axes = content;
    const was = this.current === null ? null : this.points.index[this.current];
    this.points = { x: read(buffers[0], Float64Array), y: read(buffers[1], Float64Array), index: read(buffers[2], Float64Array), passed: read(buffers[3], Uint8Array) };
    const now = was === null ? -1 : this.points.index.indexOf(was);
    this.current = now < 0 ? null : now;
    this.draw();
  }
  draw() {
    if (!this.points || !this.frame.clientWidth) return;
    const [width, height, ratio] = [this.frame.clientWidth, this.frame.clientHeight, devicePixelRatio || 1];
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const pen = this.canvas.getContext("2d"), style = getComputedStyle(this.canvas);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { x, y, index, passed } = this.points;
    this.placed = [];
    for (const chosen of [0, 1]) {
      pen.fillStyle = style.getPropertyValue(chosen ? "--nbx-bar" : "--nbl-line");
      for (let i = 0; i < index.length; i++) {
        if (passed[i] !== chosen) continue;
        const [left, top] = [this.place(this.axes.x, x[i], width, false), this.place(this.axes.y, y[i], height, true)];
        this.placed.push([left, top, i]);
        pen.beginPath();
        pen.arc(left, top, 2.5, 0, 7);
        pen.fill();
      }
    }
    const at = this.placed.find(([, , i]) => i === this.current);
    if (at) {
      pen.strokeStyle = style.getPropertyValue("--nbl-brand");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(at[0], at[1], 6, 0, 7);
      pen.stroke();
      pen.lineWidth = 1;
    }
    if (this.drag?.to) {
      pen.strokeStyle = style.getPropertyValue("--nbl-brand");
      if (this.drag.path) {
        pen.beginPath();
        for (const { x: left, y: top } of this.drag.path) pen.lineTo(left, top);
        pen.closePath();
        pen.stroke();
      } else pen.strokeRect(this.drag.x, this.drag.y, this.drag.to.x - this.drag.x, this.drag.to.y - this.drag.y);
    }
    const range = (axis) => (axis.categories ? axis.categories.slice(0, 3).join(", ") : `${valueText(axis.name, axis.low)} to ${valueText(axis.name, axis.high)}${axis.logarithmic ? ", logarithmic" : ""}`);
    this.canvas.setAttribute("aria-label", `Scatter plot of ${whole(index.length)} samples. Arrow keys go to the next point, Enter opens it, the space bar selects it.`);
    this.idle = `→ ${this.axes.x.name}: ${range(this.axes.x)} · ↑ ${this.axes.y.name}: ${range(this.axes.y)}. Click a point to open it, drag to choose some.`;
    if (!this.drag && this.current === null) write(this.said, this.idle);
  }
  point(i) {
    if (i === this.current) return;
    this.current = i;
    this.draw();
    if (i !== null) write(this.said, this.describe(i));
  }
  describe(i) {
    const name = (axis, value) => (axis.categories ? axis.categories[value] ?? "others" : valueText(axis.name, value));
    return `sample ${whole(this.points.index[i])}: ${name(this.axes.x, this.points.x[i])}, ${name(this.axes.y, this.points.y[i])}`;
  }
  key({ key }) {
    const moves = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", 1], ArrowDown: ["y", -1] };
    if (key in moves && this.points) {
      const [axis, step] = moves[key], values = this.points[axis];
      const order = [...values.keys()].filter((i) => this.points.passed[i]).sort((a, b) => values[a] - values[b] || a - b);
      const at = order.indexOf(this.current);
      if (order.length) this.point(at < 0 ? order.at(step > 0 ? 0 : -1) : order[Math.min(order.length - 1, Math.max(0, at + step))]);
    } else if (key === "Enter" && this.current !== null) this.api.open(this.points.index[this.current]);
    else if (key === " " && this.current !== null) this.api.toggle(this.points.index[this.current]);
    else return false;
    return true;
  }
  nearest({ offsetX, offsetY }) {
    let best = null, least = NEAR ** 2;
    for (const [left, top, i] of this.placed ?? []) {
      const far = (left - offsetX) ** 2 + (top - offsetY) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }
  listen() {
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.offsetX, y: event.offsetY };
      if (this.lasso.getAttribute("aria-pressed") === "true") this.drag.path = [this.drag];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.drag) {
        this.drag.to = { x: event.offsetX, y: event.offsetY };
        this.drag.path?.push(this.drag.to);
        this.draw();
        return;
      }
      const i = this.nearest(event);
      this.canvas.style.cursor = i === null ? "crosshair" : "pointer";
      write(this.said, i === null ? this.idle ?? "" : this.describe(i));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      const wide = Math.abs(event.offsetX - drag.x), deep = Math.abs(event.offsetY - drag.y);
      if (wide < 4 && deep < 4) {
        const i = this.nearest(event);
        if (i !== null) this.api.open(this.points.index[i]);
      } else if (drag.path) this.surround(drag.path);
      else this.choose(drag, { x: event.offsetX, y: event.offsetY });
      this.draw();
    });
  }
  surround(path) {  // corners in the units of the axes: logarithms, and numbers of categories
    const [width, height] = [this.frame.clientWidth, this.frame.clientHeight];
    const unit = (axis, value) => (axis.logarithmic ? Math.log(value) : axis.categories ? value - 0.5 : value);
    const corners = path.map(({ x, y }) => [unit(this.axes.x, this.value(this.axes.x, x, width, false, 1)), unit(this.axes.y, this.value(this.axes.y, y, height, true, 1))]);
    this.api.lasso({ x: this.axes.x.name, y: this.axes.y.name, corners });
  }
  choose(from, to) {
    const [width, height] = [this.frame.clientWidth, this.frame.clientHeight];
    for (const [axis, ends] of [
      [this.axes.x, [from.x, to.x].map((pixel) => this.value(this.axes.x, pixel, width, false))],
      [this.axes.y, [from.y, to.y].map((pixel) => this.value(this.axes.y, pixel, height, true))],
    ]) {
      const [low, high] = ends.sort((a, b) => a - b);
      const chosen = axis.categories ? axis.categories.filter((_, at) => at + 0.5 >= low && at + 0.5 <= high) : [low, high];
      this.api.filter(axis.name, chosen);
    }
  }
}

// `api`: send(message), open(index), toggle(index) selects a sample, list(name) lists the samples of a problem, arrange(part) lists others.
class Statistics {
  constructor(root, api) {
    Object.assign(this, { api, filters: {}, histograms: new Map(), asked: false, again: false, timer: null, by: "label" });
    this.node = make("details", "nbl-section nbx-stats", root);
    const head = make("summary", "", this.node);
    make("span", "nbl-title", head, "Statistics and problems");
    this.note = make("span", "nbl-note", head);
    const body = make("div", "nbl-body", this.node);
    this.node.addEventListener("toggle", () => this.request());

    const scan = make("div", "nbx-tools", body);
    this.scans = make("span", "nbl-actions", scan);
    this.bar = make("progress", "", scan);
    this.pause = button(scan, "Pause", "Pause the scan", () => api.send({ kind: "scan", action: this.scanning.paused ? "resume" : "pause" }));
    this.stop = button(scan, "Stop", "End the scan", () => api.send({ kind: "scan", action: "stop" }));
    this.giveUp = button(scan, "Give up", "Give up the samples that hang", () => {
      for (const index of this.scanning.reading) api.send({ kind: "give_up", index });
    });
    this.scanned = make("span", "nbl-note", scan);
    this.problems = make("div", "nbx-tools nbx-problems", body);
    this.problems.setAttribute("role", "group");
    this.problems.setAttribute("aria-label", "problems");
    this.grid = make("div", "nbx-hists", body);
    this.same = make("p", "nbl-note", body);
    const plots = make("div", "nbx-plots", body);
    this.scatter = new Scatter(make("div", "", plots), { request: () => this.request(), open: api.open, toggle: api.toggle, filter: (name, chosen) => this.filter(name, chosen), lasso: (message) => api.send({ kind: "lasso", ...message }) });
    const costs = make("div", "", plots);
    const bar = make("div", "nbx-tools", costs);
    make("span", "nbl-note", bar, "What it costs, by");
    this.bySelect = make("select", "", bar);
    this.bySelect.setAttribute("aria-label", "costs by this field");
    this.bySelect.addEventListener("change", () => this.request());
    this.sentence = make("p", "", costs);
    this.costs = make("table", "nbx-costs", costs);
    this.resized = new ResizeObserver(() => this.scatter.draw());
    this.resized.observe(this.scatter.frame);
    this.confusion = new Confusion(body, { request: () => this.request(), choose: (filters) => {
      this.choose(filters);
      api.arrange({ filters: this.filters });
    } });
    plots.hidden = true;
    this.plots = plots;
  }
  close() {
    clearTimeout(this.timer);
    this.resized.disconnect();
  }
  key(event) {
    const histogram = [...this.histograms.values()].find(({ node }) => node === event.target);
    if (!histogram?.key(event)) return false;
    event.preventDefault();
    return true;
  }
  applyState({ total, streaming, scanning }) {
    if (this.total !== total && !streaming) {
      this.total = total;
      this.scans.replaceChildren();
      if (total > 1000) button(this.scans, "Scan 1,000", "Scan 1,000 samples, spread over the dataset", () => this.scan(1000));
      button(this.scans, `Scan all ${whole(total)}`, "Scan all samples", () => this.scan(total));
    }
    this.showScan(scanning);
  }
  scan(count) {
    this.api.send({ kind: "scan", action: "start", count });
  }
  showScan(scanning) {
    this.scanning = scanning;
    for (const node of [this.bar, this.pause, this.stop]) node.hidden = !scanning;
    this.giveUp.hidden = !(scanning?.reading.length && scanning.left === 0 && !scanning.paused);
    if (scanning) {
      this.bar.max = scanning.total;
      this.bar.value = scanning.done;
      write(this.pause, scanning.paused ? "Resume" : "Pause");
      describe(this.pause, `${this.pause.textContent} the scan`);
      const late = this.giveUp.hidden ? "" : `, still reading ${scanning.reading.slice(0, 3).map(whole).join(", ")}`;
      write(this.scanned, `${whole(scanning.done)} of ${whole(scanning.total)}${scanning.paused ? ", paused" : late}`);
    } else write(this.scanned, "");
    this.changed();
  }
  changed() {  // some samples were read
    if (this.node.open) this.timer ??= setTimeout(() => this.request(), REFRESH);
  }
  request() {
    clearTimeout(this.timer);
    this.timer = null;
    if (!this.node.open) return;
    if (this.asked) {
      this.again = true;
      return;
    }
    this.asked = true;
    const [x, y] = this.scatter.fields;
    this.api.send({ kind: "stats", filters: this.filters, x, y, by: this.bySelect.value || "label", pair: this.confusion.pair });
  }
  filter(name, chosen) {
    if (chosen) this.filters[name] = chosen;
    else delete this.filters[name];
    this.api.arrange({ filters: this.filters });
    this.request();
  }
  plot(x, y) {  // as soon as these columns are known
    this.plotted = [x, y];
    this.node.open = true;
    this.request();
  }
  choose(filters) {  // filters that were not chosen in a histogram
    this.filters = { ...filters };
    for (const histogram of this.histograms.values()) {
      const { labels, edges } = histogram.data, values = this.filters[histogram.name];
      const at = values ? (labels ? labels.indexOf(values[0]) : edges.indexOf(values[0])) : -1;
      histogram.chosen = at < 0 ? null : [at, at];
      histogram.draw();
    }
    this.request();
  }
  reset() {  // another list of samples is shown
    this.filters = {};
    for (const histogram of this.histograms.values()) {
      histogram.chosen = null;
      histogram.draw();
    }
    this.request();
  }
  update(message, buffers) {
    this.asked = false;
    const { columns, problems, rows, passed, costs, scatter } = message;
    const found = Object.values(problems).reduce((sum, count) => sum + count, 0);
    const filtered = Object.keys(this.filters).length ? `, ${whole(passed)} of them pass the filters` : "";
    write(this.note, `${whole(rows)} read${filtered}${found ? ` · ▲ ${whole(found)} ${found === 1 ? "problem" : "problems"}` : ""}`);
    this.drawProblems(problems, message.checked);
    const constant = columns.filter(narrow);
    write(this.same, constant.length ? `The same, or nearly, in all: ${constant.map(({ name, labels, edges }) => `${name} ${labels ? labels[0] : valueText(name, edges[0])}`).join(", ")}` : "");
    for (const column of columns) {
      if (narrow(column) && !this.histograms.has(column.name)) continue;
      if (!this.histograms.has(column.name)) this.histograms.set(column.name, new Histogram(this.grid, column.name, (name, chosen) => this.filter(name, chosen)));
      this.histograms.get(column.name).update(column);
    }
    const names = columns.map(({ name }) => name);
    const telling = columns.filter((column) => !narrow(column)).map(({ name }) => name);
    this.plots.hidden = !names.length;
    const classed = columns.filter(({ labels, whole: integers, all }) => (labels || integers) && all.length > 1).map(({ name }) => name);
    this.confusion.node.hidden = !(classed.length > 1 && message.own.some((name) => classed.includes(name)));
    const byClass = columns.filter(({ name, labels }) => labels?.length > 1 && !MEASURED.includes(name)).map(({ name }) => name);
    const added = message.own.find((name) => classed.includes(name));
    const changed = [
      this.fill(this.confusion.selects[0], classed, ["label", "target", ...classed.filter((name) => name !== added)]),
      this.fill(this.confusion.selects[1], classed, [added, ...classed]),
      this.fill(this.scatter.selects[0], names, [...["nbytes", "label"].filter((name) => telling.includes(name)), ...telling.slice(1), names[0]]),
      this.fill(this.scatter.selects[1], names, ["seconds", names[1] ?? names[0]]),
      this.fill(this.bySelect, names, ["label", ...byClass.filter((name) => !name.endsWith(".shape")), ...byClass, ...telling.filter((name) => !MEASURED.includes(name)), names[0]]),
    ].some(Boolean);
    if (this.plotted?.every((name) => names.includes(name))) {
      this.scatter.selects.forEach((node, at) => { node.value = this.plotted[at]; });
      this.plotted = null;
      this.again = true;
    }
    if (scatter) this.scatter.update(scatter, buffers);
    this.drawCosts(costs);
    this.confusion.update(message.confusion, columns);
    if (changed || this.again) {
      this.again = false;
      this.request();
    }
  }
  fill(select, names, preferred) {  // returns whether another field is selected now
    if ([...select.options].map(({ value }) => value).join("\n") === names.join("\n")) return false;
    const before = select.value;
    select.replaceChildren(...names.map((name) => Object.assign(make("option", "", null, name), { value: name })));
    select.value = names.includes(before) ? before : preferred.find((name) => names.includes(name)) ?? "";
    return select.value !== before;
  }
  drawProblems(problems, checked) {
    const key = JSON.stringify([problems, checked]);
    if (key === this.problemsKey) return;
    this.problemsKey = key;
    keepFocus(this.problems, () => this.fillProblems(problems, checked), () => this.node.querySelector("summary"));
  }
  fillProblems(problems, checked) {
    this.problems.replaceChildren();
    for (const [kind, count] of Object.entries(problems)) {
      if (count) button(this.problems, `${whole(count)} ${PROBLEMS[kind]}`, `List the problem: ${PROBLEMS[kind]}`, () => this.api.list(kind));
    }
    const none = !this.problems.children.length;
    const text = !checked ? "Scan samples to find duplicates, constant values, values that are not finite, and other shapes." : `${none ? "No problems" : ""} among ${whole(checked)} scanned samples`;
    make("span", "nbl-note", this.problems, text);
  }
  drawCosts(costs) {
    this.costs.replaceChildren();
    const name = ({ value }) => (Array.isArray(value) ? value.map((edge) => valueText(this.bySelect.value, edge)).join(" to ") : value);
    const share = (value) => (value > 0 && value < 0.005 ? "< 1%" : `${Math.round(100 * value)}%`);
    const excess = ({ share_of_samples, share_of_time }) => share_of_time - share_of_samples;
    const [dear] = this.bySelect.value === "seconds" || this.bySelect.value === "cpu_seconds" ? [] : costs.filter((line) => line.share_of_time > 1.5 * line.share_of_samples).sort((a, b) => excess(b) - excess(a));
    const sentence = dear && `${this.bySelect.value} ${name(dear)} is ${share(dear.share_of_samples)} of the samples and ${share(dear.share_of_time)} of the time.`;
    write(this.sentence, dear && excess(dear) > 0.05 ? sentence : "");
    if (!costs.length) return;
    const head = make("tr", "", make("thead", "", this.costs));
    for (const text of ["value", "samples", "time", "each"]) make("th", "", head, text).scope = "col";
    const body = make("tbody", "", this.costs);
    const most = Math.max(...costs.flatMap((line) => [line.share_of_samples, line.share_of_time]));
    for (const line of costs) {
      const row = make("tr", "", body);
      make("th", "", row, name(line)).scope = "row";
      for (const part of [line.share_of_samples, line.share_of_time]) {
        const cell = make("td", "", row);
        make("span", "", cell, share(part));
        make("i", "", cell).style.width = `${(60 * part) / most}px`;
      }
      make("td", "", row, time(line.seconds));
    }
  }
}
