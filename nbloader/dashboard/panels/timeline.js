// The timeline: lanes of coloured blocks on a canvas. timeline.py says which block is where, and what its tooltip says.

const LEAST = 50, FIRST = 1000, KEPT_MS = 120000, KEPT_ROWS = 20000;  // ms; rows of all lanes
const GUTTER = 84, AXIS = 18, TOP = 12;  // pixels
const STEPS = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000];  // ms between two ticks of the axis

class Timeline {
  constructor(el, api) {
    this.api = api;
    const { make, button } = api;
    const bar = make("div", "nbl-bar-line", el);
    this.keys = make("div", "nbl-keys", bar);
    const tools = make("div", "nbl-actions", bar);
    button(tools, "−", "Show more time", () => this.zoom(2));
    button(tools, "+", "Show less time", () => this.zoom(0.5));
    this.liveButton = button(tools, "Live", "", () => this.goLive());
    this.frame = make("div", "nbl-frame", el);
    this.canvas = make("canvas", "", this.frame);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = make("div", "nbl-tip", this.frame);
    this.tip.hidden = true;
    this.clear();
    this.end = null;  // null follows the clock, and stays at the end of an epoch that has ended
    this.span = null;  // null fits what there is
    this.listen();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.frame);
  }
  clear() {
    this.lanes = new Map();  // label -> rows, by time
    this.rows = new Map();  // lane and key -> row: a batch in the reorder buffer gets a new row when it is delivered
  }
  remove() {
    this.resized.disconnect();
  }
  retheme() {
    this.draw();
  }

  update(data, { entries, reset, now }) {
    if (reset) this.clear();
    this.data = data;
    this.now = now;
    if (this.end > now) this.end = null;  // a recording was moved back
    this.showLegend(data.kinds);
    for (const entry of entries) this.add(entry);
    this.forget();
    this.draw();
  }
  showLegend(kinds) {
    const names = kinds.map(({ name }) => name).join();
    if (names === this.legend) return;
    this.legend = names;
    this.kinds = new Map(kinds.map((kind) => [kind.name, kind]));
    this.keys.replaceChildren();
    for (const { label, color } of kinds) this.api.make("span", "nbl-key", this.keys, label).style.setProperty("--nbl-key", color);
    this.api.make("span", "nbl-key-stall", this.keys, "stall");
  }
  add(entry) {
    const id = `${entry.lane} ${entry.key}`;
    const begin = entry.blocks[0][1];
    const until = Math.max(...entry.blocks.map(([, , end]) => end ?? Infinity));
    const row = { ...entry, id, begin, until };
    const old = this.rows.get(id);
    if (old) {
      Object.assign(old, row);
      return;
    }
    this.rows.set(id, row);
    if (!this.lanes.has(entry.lane)) this.lanes.set(entry.lane, []);
    const lane = this.lanes.get(entry.lane);
    let at = lane.length;
    while (at && lane[at - 1].begin > begin) at--;
    lane.splice(at, 0, row);
  }
  forget() {
    const excess = this.rows.size > KEPT_ROWS;
    for (const [name, lane] of this.lanes) {
      let drop = excess ? lane.length >> 2 : 0;
      while (drop < lane.length && lane[drop].until < this.now - KEPT_MS) drop++;
      for (const row of lane.splice(0, drop)) this.rows.delete(row.id);
      if (!lane.length) this.lanes.delete(name);
    }
  }

  // What fits: the last seconds of an epoch that runs, or the whole of one that has ended.
  fitting() {
    const { live, seconds, epoch } = this.data;
    const rows = [...this.lanes.values()].map((lane) => lane[0].begin);
    const begun = epoch?.[0] ?? Math.min(...rows, this.now);
    const end = live ? this.now : epoch?.[1] ?? (Math.max(0, ...this.rows.size ? this.ends() : []) || this.now);
    const first = live ? Math.max(Math.min(begun, ...rows), end - 1000 * seconds) : Math.max(begun, end - KEPT_MS);
    return [Math.min(first, end - (live ? FIRST : LEAST)), end];
  }
  ends() {
    return [...this.lanes.values()].map((lane) => lane.at(-1).until).filter(Number.isFinite);
  }
  get last() {  // the end of the epoch that has ended; undefined while one runs
    return this.data.live ? undefined : this.fitting()[1];
  }
  range() {
    const [first, last] = this.fitting();
    const end = this.end ?? last;
    return [end - (this.span ?? last - first), end];
  }
  draw() {
    if (!this.data || !this.api.unfolded()) return;
    const width = this.frame.clientWidth;
    if (!width) return;
    const { lanes } = this.data;
    const height = Math.max(8, Math.min(20, Math.floor(440 / lanes.length)));
    const total = TOP + lanes.length * height + AXIS;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(total * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(total * ratio);
      this.canvas.style.height = `${total}px`;
    }
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const [begin, until] = this.range();
    Object.assign(this, { laneHeight: height, begin, until, width, total });
    this.theme = Object.fromEntries(["line", "ink", "ink2", "warn", "wait"].map((name) => [name, style.getPropertyValue(`--nbl-${name}`).trim()]));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, total);
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawPauses(pen);
    this.drawAxis(pen);
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width - GUTTER, total);
    pen.clip();
    this.labelledUntil = GUTTER;
    lanes.forEach((name, i) => {
      for (const row of this.lanes.get(name) ?? []) this.drawRow(pen, row, TOP + i * height);
    });
    for (const block of this.data.open) this.drawOpen(pen, block, TOP + lanes.indexOf(block.lane) * height);
    pen.restore();
    pen.fillStyle = this.theme.ink2;
    pen.textAlign = "left";
    const every = Math.ceil(11 / height);
    const nodes = new Set(this.data.nodes);  // undefined if there are none
    lanes.forEach((name, i) => {
      const middle = TOP + (i + 0.5) * height;
      if (nodes.has(name)) this.drawNode(pen, name, middle);
      else if (i % every === 0) pen.fillText(name, 2, middle, GUTTER - 6);
    });
    this.liveButton.disabled = this.end === null && this.span === null;
    this.api.write(this.liveButton, this.data.live ? "Live" : "Whole epoch");
    const back = this.data.live ? "Follow the epoch again" : "Show the whole epoch, its last two minutes at most";
    this.api.describe(this.liveButton, back);
    const seconds = Math.round((until - begin) / 100) / 10;
    this.canvas.setAttribute("aria-label",
      `Timeline of ${lanes.length - nodes.size} lanes, ${seconds} seconds. Arrow keys move, plus and minus zoom, Enter opens the last batch, Escape goes to now.`);
    const what = this.end !== null ? `${seconds} s, not live` : this.data.live || this.span ? `the last ${seconds} s` : `${seconds} s`;
    this.api.note(this.data.live || this.rows.size ? what : "");
  }
  x(ms) {
    return GUTTER + ((ms - this.begin) / (this.until - this.begin)) * (this.width - GUTTER);
  }
  drawNode(pen, name, middle) {  // a machine, above the lanes of its workers
    pen.fillStyle = this.theme.ink;
    pen.fillText(name, 2, middle);
    pen.strokeStyle = this.theme.line;
    pen.beginPath();
    pen.moveTo(8 + pen.measureText(name).width, middle);
    pen.lineTo(this.width, middle);
    pen.stroke();
    pen.fillStyle = this.theme.ink2;
  }
  drawAxis(pen) {
    const step = STEPS.find((ms) => (ms / (this.until - this.begin)) * this.width > 70) ?? 60000;
    const zero = this.last ?? this.now;
    pen.strokeStyle = this.theme.line;
    pen.fillStyle = this.theme.ink2;
    pen.textAlign = "center";
    for (let n = Math.ceil((this.begin - zero) / step); zero + n * step <= this.until; n++) {
      const at = Math.round(this.x(zero + n * step)) + 0.5;
      pen.beginPath();
      pen.moveTo(at, TOP - 4);
      pen.lineTo(at, this.total - AXIS);
      pen.stroke();
      const label = n ? `${(n * step) / 1000} s`.replace("-", "−") : this.data.live || !this.rows.size ? "now" : "end";
      pen.textAlign = at > this.width - 14 ? "right" : "center";
      pen.fillText(label, Math.max(Math.min(at, this.width - 1), GUTTER + 14), this.total - 8);
    }
  }
  drawRow(pen, row, top) {
    if (row.begin > this.until || row.until < this.begin) return;
    for (const [name, begin, end] of row.blocks) {
      const kind = this.kinds.get(name);
      const left = this.x(begin), right = this.x(end ?? this.now);
      if (!kind || right < GUTTER || left > this.width || right <= left) continue;
      pen.fillStyle = kind.color;
      const strip = Math.max(2, this.laneHeight * 0.2);
      const gap = right - left > 3 ? 0.4 : 0;  // blocks narrower than a pixel blend: each kind keeps its share
      if (kind.below) pen.fillRect(left, top + this.laneHeight - strip - 1, Math.max(right - left, 0.2), strip);
      else pen.fillRect(left, top + 1, Math.max(right - left - gap, 0.2), this.laneHeight * 0.62);
    }
    if (row.stall) this.drawStall(pen, row.stall);
  }
  drawOpen(pen, { kind, begin, stuck }, top) {
    const left = Math.max(this.x(begin), GUTTER), right = this.x(this.now);
    if (right <= left || top < TOP) return;
    const height = this.laneHeight * 0.62;
    pen.globalAlpha = 0.55;
    pen.fillStyle = stuck ? this.theme.warn : this.kinds.get(kind).color;
    pen.fillRect(left, top + 1, right - left, height);
    pen.globalAlpha = 1;
    if (!stuck) return;
    pen.fillStyle = this.theme.ink;
    pen.textAlign = "right";
    pen.fillText("stuck", right - 4, top + 1 + height / 2);
  }
  drawPauses(pen) {
    pen.textAlign = "left";
    for (const [begin, end] of this.data.pauses) {
      const left = Math.max(this.x(begin), GUTTER), right = Math.min(this.x(end), this.width);
      if (right <= left) continue;
      pen.fillStyle = this.theme.line;
      pen.globalAlpha = 0.35;
      pen.fillRect(left, TOP - 4, right - left, this.total - AXIS - TOP + 4);
      pen.globalAlpha = 1;
      pen.fillStyle = this.theme.ink2;
      if (right - left > 44) pen.fillText("paused", left + 5, TOP + this.laneHeight * 0.36);
    }
  }
  drawStall(pen, { at, label }) {
    const x = this.x(at);
    pen.fillStyle = this.theme.wait;
    pen.beginPath();
    pen.moveTo(x - 4, 2);
    pen.lineTo(x + 4, 2);
    pen.lineTo(x, 9);
    pen.fill();
    const free = this.labelledUntil;
    this.labelledUntil = x + 6;
    if (x - 8 - pen.measureText(label).width < free) return;
    pen.textAlign = "right";
    pen.fillStyle = this.theme.ink2;
    pen.fillText(label, x - 6, 6);
  }

  listen() {
    const canvas = this.canvas;
    const time = (event) => this.begin + ((event.offsetX - GUTTER) / (this.width - GUTTER)) * (this.until - this.begin);
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, end: this.until };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const row = drag && Math.abs(event.offsetX - drag.x) <= 3 ? this.rowAt(event, time(event)) : undefined;
      drag = null;
      this.open(row);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.point(event, time(event));
      const moved = ((event.offsetX - drag.x) / (this.width - GUTTER)) * (this.until - this.begin);
      if (Math.abs(event.offsetX - drag.x) > 3) this.hold(drag.end - moved);
    });
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;  // the page scrolls
      event.preventDefault();
      this.zoom((event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, time(event));
    }, { passive: false });
  }
  key(event) {
    if (event.target !== this.canvas) return false;
    const act = {
      ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      Escape: () => this.goLive(), Home: () => this.goLive(), Enter: () => this.open(this.lastRow()),
    }[event.key];
    if (!act) return false;
    event.preventDefault();
    act();
    return true;
  }
  get shown() {
    return this.until - this.begin;
  }
  move(share) {
    this.hold(this.until + share * this.shown);
  }
  hold(end) {
    const latest = this.last ?? this.now;
    this.span ??= this.shown;
    this.end = end >= latest ? null : Math.max(end, latest - KEPT_MS + this.span);
    this.draw();
  }
  goLive() {
    this.end = this.span = null;
    this.draw();
  }
  zoom(factor, at = this.until) {
    const span = Math.min(KEPT_MS, Math.max(LEAST, this.shown * factor));
    const end = at + ((this.until - at) * span) / this.shown;
    this.span = span;
    if (at !== this.until || this.end !== null) this.hold(end);
    else this.draw();
  }
  rowAt(event, at) {
    const name = this.data?.lanes[Math.floor((event.offsetY - TOP) / this.laneHeight)];
    const near = this.shown / 400;
    return name === undefined || event.offsetX < GUTTER ? undefined
      : (this.lanes.get(name) ?? []).findLast(({ begin, until }) => begin - near <= at && at <= until + near);
  }
  lastRow() {  // the batch that was delivered last in what is shown
    const rows = [...this.rows.values()].filter(({ batch, until }) => batch && until <= this.until);
    return rows.reduce((last, row) => (last && last.until > row.until ? last : row), undefined);
  }
  open(row) {
    if (this.opens(row)) this.api.explore({ epoch: row.batch[0], batch: row.batch[1] });
  }
  opens(row) {
    return Boolean(row?.batch && this.api.explore);
  }
  point(event, at) {
    const row = this.rowAt(event, at);
    this.canvas.style.cursor = this.opens(row) ? "pointer" : "";
    this.tip.hidden = !row;
    if (!row) return;
    this.api.write(this.tip, this.opens(row) ? `${row.tip}\nclick: see its samples` : row.tip);
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.width - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }
}

export function create(el, api) {
  return new Timeline(el, api);
}
