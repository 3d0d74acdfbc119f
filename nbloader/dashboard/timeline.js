// The timeline: a lane for the loop and one per worker, drawn on a canvas from the rows that dashboard/spans.py makes.

const SHOWN = 30000, LEAST = 50, KEPT_MS = 120000, KEPT_ROWS = 20000;  // ms; rows of all lanes
const GUTTER = 64, AXIS = 18, TOP = 12;
const WORDS = {
  fetch: "fetches", collate: "collates", order: "made, waits for an earlier batch",
  pin: "is pinned", upload: "is uploaded", wait: "your loop waits",
  step: "your loop works",
};
const DEVICE = ["pin", "upload"];  // only where batches go to one
const PLACES = ["loop", "to ", "pin"];  // lanes from the top, by how their names begin; then workers
const laneLabel = (name) => (typeof name !== "string" ? (name < 0 ? "in process" : `worker ${name}`)
  : !name.startsWith("loop") ? name : name === "loop 0" ? "your loop" : `loop ${Number(name.slice(5)) + 1}`);
const inSeconds = (ms) => (ms < 1 ? `${(1000 * ms).toFixed(0)} us` : ms < 1000 ? `${ms.toFixed(ms < 10 ? 2 : 0)} ms`
  : `${(ms / 1000).toFixed(1)} s`);

class Timeline {
  constructor(section) {
    this.section = section;
    const bar = make("div", "nbl-bar-line", section.body);
    this.keys = make("div", "nbl-keys", bar);
    for (const [kind, word] of Object.entries(WORDS)) {
      make("span", `nbl-key nbl-key-${kind}`, this.keys, word).hidden = DEVICE.includes(kind);
    }
    make("span", "nbl-key-stall", this.keys, "stall");
    const tools = make("div", "nbl-actions", bar);
    button(tools, "−", "Show more time", () => this.zoom(2));
    button(tools, "+", "Show less time", () => this.zoom(0.5));
    this.live = button(tools, "Live", "Go back to now", () => this.toLive());
    this.frame = make("div", "nbl-frame", section.body);
    this.canvas = make("canvas", "", this.frame);
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.tip = make("div", "nbl-tip", this.frame);
    this.tip.hidden = true;
    this.clear();
    this.span = SHOWN;
    this.end = null;  // null follows the clock
    this.listen();
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.frame);
  }
  clear() {
    this.lanes = new Map();  // name -> rows, by time
    this.rows = new Map();  // of workers, by batch: a batch that was made gets a second row once it is delivered
  }
  remove() {
    this.resized.disconnect();
  }
  update(view, now, spans, full) {
    if (full) this.clear();
    this.view = view;
    this.now = now;
    for (const kind of DEVICE) this.keys.querySelector(`.nbl-key-${kind}`).hidden = !view.placed;
    for (const row of spans) this.add(row);
    let rows = 0;
    for (const lane of this.lanes.values()) rows += lane.length;
    const excess = rows > KEPT_ROWS;
    for (const [name, lane] of this.lanes) {
      let drop = excess ? lane.length >> 2 : 0;
      while (drop < lane.length && lane[drop].until < now - KEPT_MS) drop++;
      for (const row of lane.splice(0, drop)) this.rows.delete(row.key);
      if (!lane.length) this.lanes.delete(name);
    }
    this.draw();
  }
  add(row) {
    const [kind, who, run, number, count] = row;
    const name = [who, `loop ${who}`, "pin", `to ${who}`][kind];
    const key = kind ? null : `${who}/${run}/${number}`;
    const span = { row, key, number, count, begin: row[5], until: kind ? row[7] : Math.max(row[7], row[9]) };
    const old = key && this.rows.get(key);
    if (old) {
      Object.assign(old, span);
      return;
    }
    if (!this.lanes.has(name)) this.lanes.set(name, []);
    const lane = this.lanes.get(name);
    let at = lane.length;
    while (at && lane[at - 1].begin > span.begin) at--;
    lane.splice(at, 0, span);
    if (key) this.rows.set(key, span);
  }
  order() {
    const place = (name) => (typeof name === "number" ? PLACES.length : PLACES.findIndex((begin) => name.startsWith(begin)));
    const names = new Set(["loop 0", ...this.lanes.keys(), ...this.view.workers.map(({ id }) => id)]);
    return [...names].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
  }
  range() {
    const going = ["running", "starting", "paused"].includes(this.view.state);
    if (!going && this.last === undefined) {
      this.last = Math.max(0, ...[...this.lanes.values()].map((lane) => lane.at(-1)?.until ?? 0)) || this.now;
    } else if (going) this.last = undefined;
    const end = this.end ?? this.last ?? this.now;
    let span = this.span;
    if (this.end === null && span === SHOWN) {  // the first seconds fill the width
      const first = Math.min(...[...this.lanes.values()].map((lane) => lane[0].begin), end);
      span = Math.min(span, Math.max(10000, (end - first) * 1.02));
    }
    return [end - span, end];
  }
  draw() {
    if (!this.section.open || !this.view) return;
    const width = this.frame.clientWidth;
    if (!width) return;
    const lanes = this.order();
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
    const colour = (name) => style.getPropertyValue(`--nbl-${name}`).trim();
    const [begin, end] = this.range();
    const x = (ms) => GUTTER + ((ms - begin) / (end - begin)) * (width - GUTTER);
    Object.assign(this, { laneNames: lanes, laneHeight: height, begin, until: end, width });
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, total);
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.pauses(pen, x, total, colour);
    this.axis(pen, x, total, colour);
    const palette = Object.fromEntries([...Object.keys(WORDS), "warn", "ink", "ink2"].map((n) => [n, colour(n)]));
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, 0, width - GUTTER, total);
    pen.clip();
    this.labelled = GUTTER;
    lanes.forEach((name, i) => this.lane(pen, name, TOP + i * height, height, x, palette));
    pen.restore();
    pen.fillStyle = colour("ink2");
    pen.textAlign = "left";
    const every = Math.ceil(11 / height);
    lanes.forEach((name, i) => {
      if (i % every) return;
      pen.fillText(laneLabel(name), 2, TOP + (i + 0.5) * height, GUTTER - 4);
    });
    this.live.disabled = this.end === null;
    const seconds = Math.round((end - begin) / 100) / 10;
    this.canvas.setAttribute("aria-label",
      `Timeline of ${lanes.length} lanes, ${seconds} seconds. Arrow keys move, plus and minus zoom, Escape goes to now.`);
    write(this.section.note, `${seconds} s${this.end === null ? "" : ", held"}`);
  }
  axis(pen, x, total, colour) {
    const step = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000]
      .find((ms) => (ms / (this.until - this.begin)) * this.width > 70) ?? 60000;
    const zero = this.last ?? this.now;
    pen.strokeStyle = colour("line");
    pen.fillStyle = colour("ink2");
    pen.textAlign = "center";
    for (let n = Math.ceil((this.begin - zero) / step); zero + n * step <= this.until; n++) {
      const at = Math.round(x(zero + n * step)) + 0.5;
      pen.beginPath();
      pen.moveTo(at, TOP - 4);
      pen.lineTo(at, total - AXIS);
      pen.stroke();
      const seconds = (n * step) / 1000;
      if (at < this.width - 12) pen.fillText(n ? `${seconds} s`.replace("-", "−") : "now", Math.max(at, GUTTER + 14), total - 8);
    }
  }
  lane(pen, name, top, height, x, palette) {
    const body = height * 0.62, strip = Math.max(2, height * 0.2);
    const block = (kind, a, b) => {
      const left = x(a), right = x(b);
      if (right < GUTTER || left > this.width || b <= a) return;
      pen.fillStyle = palette[kind];
      if (kind === "order") pen.fillRect(left, top + height - strip - 1, Math.max(right - left, 0.7), strip);
      else pen.fillRect(left, top + 1, Math.max(right - left - 0.4, 0.7), body);
    };
    for (const span of this.lanes.get(name) ?? []) {
      if (span.begin > this.until || (span.until < this.begin && span.row[9] !== 0)) continue;
      const [kind, , , , , a, b, c, d, e] = span.row;
      if (kind > 1) {
        block(kind === 2 ? "pin" : "upload", a, b);
        continue;
      }
      if (kind === 1) {
        for (const [from, to] of this.awake(a, b)) block("wait", from, to);
        block("step", b, c);
        if (d) this.stall(pen, x(b), d, palette);
        continue;
      }
      block("fetch", a, b);
      block("collate", b, c);
      if (span.count === 1) block("order", d, e || this.now);
    }
    this.open(pen, name, top, body, x, palette);
  }
  awake(begin, end) {  // of a wait, what was not paused
    const parts = [];
    for (const [a, b] of this.view.pauses) {
      if (a >= end || b <= begin) continue;
      if (a > begin) parts.push([begin, a]);
      begin = b;
    }
    if (begin < end) parts.push([begin, end]);
    return parts;
  }
  pauses(pen, x, total, colour) {
    pen.textAlign = "left";
    for (const [a, b] of this.view.pauses) {
      const left = Math.max(x(a), GUTTER), right = Math.min(x(b), this.width);
      if (right <= left) continue;
      pen.fillStyle = colour("line");
      pen.globalAlpha = 0.35;
      pen.fillRect(left, TOP - 4, right - left, total - AXIS - TOP + 4);
      pen.globalAlpha = 1;
      pen.fillStyle = colour("ink2");
      if (right - left > 44) pen.fillText("paused", left + 5, TOP + this.laneHeight * 0.36);
    }
  }
  open(pen, name, top, body, x, palette) {  // what has begun and not ended
    let begin, kind, stuck = false;
    if (typeof name === "string") {
      if (name !== "loop 0" || !this.view.loop) return;
      kind = this.view.loop[0];
      begin = this.now - this.view.loop[2];
    } else {
      const worker = this.view.workers.find(({ id }) => id === name);
      if (!worker || worker.age === null) return;
      stuck = worker.state === "stuck";
      kind = worker.cells[1] === "collating" ? "collate" : "fetch";
      begin = this.now - worker.age;
    }
    const left = Math.max(x(begin), GUTTER), right = x(this.now);
    if (right <= left) return;
    pen.globalAlpha = 0.55;
    pen.fillStyle = stuck ? palette.warn : palette[kind];
    pen.fillRect(left, top + 1, right - left, body);
    pen.globalAlpha = 1;
    if (stuck) {
      pen.fillStyle = palette.ink;
      pen.textAlign = "right";
      pen.fillText("stuck", right - 4, top + 1 + body / 2);
    }
  }
  stall(pen, at, waited, palette) {
    pen.fillStyle = palette.wait;
    pen.beginPath();
    pen.moveTo(at - 4, 2);
    pen.lineTo(at + 4, 2);
    pen.lineTo(at, 9);
    pen.fill();
    const text = inSeconds(waited);
    const free = this.labelled;  // from the last mark on
    this.labelled = at + 6;
    if (at - 8 - pen.measureText(text).width < free) return;
    pen.textAlign = "right";
    pen.fillStyle = palette.ink2;
    pen.fillText(text, at - 6, 6);
  }
  listen() {
    const canvas = this.canvas;
    const time = (event) => this.begin + ((event.offsetX - GUTTER) / (this.width - GUTTER)) * (this.until - this.begin);
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, end: this.until };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => (drag = null));
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
    const act = {
      ArrowLeft: () => this.hold(this.until - this.span / 5), ArrowRight: () => this.hold(this.until + this.span / 5),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      Escape: () => this.toLive(), Home: () => this.toLive(),
    }[event.key];
    if (!act) return false;
    event.preventDefault();
    act();
    return true;
  }
  hold(end) {
    const most = this.last ?? this.now;
    this.end = end >= most ? null : Math.max(end, most - KEPT_MS + this.span);
    this.draw();
  }
  toLive() {
    this.end = null;
    this.span = SHOWN;
    this.draw();
  }
  zoom(factor, at = this.until) {
    const span = Math.min(KEPT_MS, Math.max(LEAST, this.span * factor));
    const end = at + ((this.until - at) * span) / this.span;
    this.span = span;
    if (at !== this.until || this.end !== null) this.hold(end);
    else this.draw();
  }
  point(event, at) {
    const name = this.laneNames?.[Math.floor((event.offsetY - TOP) / this.laneHeight)];
    const text = name === undefined || event.offsetX < GUTTER ? "" : this.describe(name, at);
    this.tip.hidden = !text;
    if (!text) return;
    write(this.tip, text);
    this.tip.style.left = `${Math.min(event.offsetX + 12, this.width - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${event.offsetY + 14}px`;
  }
  describe(name, at) {
    const near = this.span / 400;
    const found = (this.lanes.get(name) ?? []).findLast((s) => s.begin - near <= at && at <= Math.max(s.until, s.row[7]) + near);
    if (!found) return "";
    const [kind, who, , number, count, a, b, c, d, e, indices] = found.row;
    const head = count > 1 ? `${count} batches from ${number} on` : `batch ${number}`;
    if (kind === 2) return `${head}\npinned in ${inSeconds(b - a)} (${who === "registered" ? "where it lies" : "by a copy"})`;
    if (kind === 3) {
      const hidden = d === null ? "" : `\n${Math.round((100 * Math.min(d, b - a)) / (b - a))} % of it while your loop worked`;
      return `${head}\n${e} MB to ${who} in ${inSeconds(b - a)}: ${(e / (b - a)).toPrecision(3)} GB/s${hidden}`;
    }
    if (kind === 1) {
      return `${head}\n${WORDS.wait} ${inSeconds(e)}${!d ? "" : count > 1 ? `, of it a stall of ${inSeconds(d)}` : " (stall)"}\n${WORDS.step} ${inSeconds(c - b)}`;
    }
    const lines = [head, `fetch ${inSeconds(b - a)}, collate ${inSeconds(c - b)}`];
    if (count === 1 && d) lines.push(`waits in order ${inSeconds(Math.max(0, (e || this.now) - d))}${e ? "" : " so far"}`);
    if (indices) lines.push(count > 1 ? indices : `samples ${indices}`);
    return lines.join("\n");
  }
}
