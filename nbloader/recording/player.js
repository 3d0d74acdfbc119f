// Plays recorded runs. For the code of the dashboard (core.js) it takes the place of the kernel: it sends it the messages
// of a run, in the order and at the speed that the user wants. player.py makes what is played: `Player._content`.
//
// A run is a list of messages [time in ms, payloads by panel, news by panel]. To move to a moment, one full message is
// made of all before it: the last payload of each panel, and all news. From there on they are sent one after the other.
//
// `../frontend/view.js` stands before this text in the module.

const SPEEDS = [0.25, 0.5, 1, 2, 4, 8];
const FRAME = 50;  // ms between two steps of a run that plays
const STEP = 250;  // ms by which an arrow key moves, which is how far messages are apart
const PAUSE = 3000, LEFT = 400;  // ms of a recording without news that are played; of a longer time so many are left
const EARLY = 300;  // ms before a moment at which "previous" still goes to the one before it

class Run {
  constructor({ name, fork, length, note, marks, messages }) {
    Object.assign(this, { name, fork, length, note, messages });
    this.marks = marks.sort((a, b) => a.ms - b.ms);
  }
  at(ms) {  // index of the last message that was sent by then
    let low = 0, high = this.messages.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.messages[middle][0] <= ms) low = middle;
      else high = middle;
    }
    return low;
  }
  joined(begin, end) {  // messages with indices from begin to end, both included, as one
    const payloads = {}, news = {};
    for (const [, some, entries] of this.messages.slice(begin, end + 1)) {
      Object.assign(payloads, some);
      for (const [panel, list] of Object.entries(entries)) (news[panel] ??= []).push(...list);
    }
    return { now: this.messages[end][0], payloads, news };
  }
}

// What core.js takes for the connection to the kernel.
class Model {
  constructor(answer) {
    this.recorded = true;
    this.listeners = new Set();
    this.send = (message) => queueMicrotask(() => answer(message));
  }
  on(_name, listener) {
    this.listeners.add(listener);
  }
  off(_name, listener) {
    this.listeners.delete(listener);
  }
  emit(message) {
    for (const listener of [...this.listeners]) listener(message, []);
  }
}

class Player {
  constructor({ id, panels, figures, fork, runs }) {
    Object.assign(this, { id, panels, figures, fork });
    this.runs = runs.map((run) => new Run(run));
    this.run = this.runs[0];
    this.position = 0;  // ms
    this.speed = 1;
    this.sent = -1;  // index of the last message that was sent
    this.chosen = this.runs.length === 1;  // whether the user has said which run to follow
    this.timer = this.moving = null;
    this.watched = false;
    this.model = new Model((message) => this.answer(message));
  }
  answer({ kind, view, panel, name }) {
    if (kind === "ready") {
      this.watched = true;
      this.showAll();
    } else if (kind === "request" && panel === "plots" && name === "figures") {
      this.model.emit({ kind: "reply", to: view, panel, ...this.figures });
    }
  }

  // ---- what is on screen

  showAll() {
    if (!this.watched) return;
    this.sent = this.run.at(this.position);
    this.model.emit({ kind: "full", id: this.id, panels: this.panels, ...this.run.joined(0, this.sent) });
  }
  showNews() {
    const until = this.run.at(this.position);
    if (until === this.sent || !this.watched) return;
    this.model.emit({ kind: "tick", ...this.run.joined(this.sent + 1, until) });
    this.sent = until;
  }

  // ---- time

  get playing() {
    return this.timer !== null;
  }
  play() {
    if (this.playing) return;
    if (this.position >= this.run.length) this.seek(0);
    this.before = performance.now();
    this.timer = setInterval(() => this.advance(), FRAME);
    this.draw();
  }
  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.draw();
  }
  advance() {
    const now = performance.now();
    let to = this.position + (now - this.before) * this.speed;
    this.before = now;
    const next = this.run.messages[this.sent + 1]?.[0] ?? this.run.length;
    if (next - to > PAUSE * Math.max(1, this.speed)) to = next - LEFT;
    const { fork } = this.run;
    const asks = !this.chosen && this.position < fork && fork <= to;
    this.position = asks ? fork : Math.min(to, this.run.length);
    this.showNews();
    if (asks || this.position >= this.run.length) this.pause();
    else this.draw();
  }
  seek(ms) {
    this.position = Math.max(0, Math.min(ms, this.run.length));
    if (this.runs.length > 1) this.chosen = this.position > this.run.fork;
    this.draw();
    this.moving ??= setTimeout(() => {  // a dragged slider gives more moments than anybody can see
      this.moving = null;
      this.showAll();
    }, 30);
  }
  skip(direction) {
    const moments = [0, ...this.run.marks.map(({ ms }) => ms), this.run.length];
    const at = this.position;
    this.seek(direction > 0 ? moments.find((ms) => ms > at + 1) ?? at : moments.findLast((ms) => ms < at - EARLY) ?? 0);
  }
  choose(run) {
    this.run = run;
    this.seek(run.fork);
    this.chosen = true;
    this.drawTicks();
    this.play();
  }

  // ---- the bar

  build(el) {
    const bar = make("div", "nbl nbl-player-bar", el);
    this.bar = bar;
    bar.setAttribute("role", "group");
    bar.setAttribute("aria-label", "Player of a recorded run");
    const line = make("div", "nbl-player-line", bar);
    this.toggle = button(line, "▶ Play", "Play", () => (this.playing ? this.pause() : this.play()));
    this.toggle.classList.add("nbl-play");
    for (const [text, name, direction] of [["|◀", "Back to the moment before", -1], ["▶|", "On to the next moment", 1]]) {
      button(line, text, name, () => this.skip(direction)).title = name;
    }
    const track = make("div", "nbl-track", line);
    this.slider = make("input", "", track);
    Object.assign(this.slider, { type: "range", min: 0, step: 1 });
    this.slider.setAttribute("aria-label", "Position in the run");
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.ticks = make("div", "nbl-ticks", track);
    this.event = make("span", "nbl-note nbl-player-event", line);
    this.clock = make("span", "nbl-note nbl-clock", line);
    const speed = make("select", "", line);
    speed.setAttribute("aria-label", "Speed");
    for (const value of SPEEDS) make("option", "", speed, `${value}×`).value = String(value);
    speed.value = "1";
    speed.addEventListener("change", () => { this.speed = Number(speed.value); });
    if (this.runs.length > 1) this.buildForks(bar);
    this.note = make("p", "nbl-note nbl-player-note", bar);
    this.drawTicks();
  }
  buildForks(bar) {
    this.forks = make("div", "nbl-forks", bar);
    this.forks.setAttribute("role", "group");
    this.forks.setAttribute("aria-label", "What happens if");
    make("span", "nbl-label", this.forks, this.fork ? `When ${this.fork}:` : "What happens if:");
    for (const run of this.runs) run.button = button(this.forks, run.name, `${run.name}: play this run from where it parts`, () => this.choose(run));
  }
  drawTicks() {
    const { marks, length } = this.run;
    this.slider.max = String(Math.ceil(length));
    this.ticks.replaceChildren(...marks.map(({ ms, text, kind }) => {
      const tick = button(null, "", `Go to: ${text}`, () => this.seek(ms));
      tick.className = `nbl-tick-${kind}`;
      tick.tabIndex = -1;  // with the keyboard: the buttons beside it
      tick.title = text;
      tick.style.left = `${(100 * ms) / Math.max(1, length)}%`;
      return tick;
    }));
    write(this.note, this.run.note);
    this.draw();
  }
  draw() {
    const { length, marks, fork } = this.run;
    const label = this.playing ? "❚❚ Pause" : this.position >= length ? "↻ Again" : "▶ Play";
    write(this.toggle, label);
    describe(this.toggle, label.slice(2).trim());
    this.slider.value = String(this.position);
    const text = `${clock(this.position)} / ${clock(length)}`;
    this.slider.setAttribute("aria-valuetext", text);
    write(this.clock, text);
    const last = marks.findLast(({ ms }) => ms <= this.position + 1);
    write(this.event, last?.text ?? "");
    this.event.title = last?.text ?? "";
    if (!this.forks) return;
    this.forks.classList.toggle("nbl-asking", !this.chosen && !this.playing && Math.abs(this.position - fork) < 1);
    for (const run of this.runs) run.button.setAttribute("aria-pressed", String(run === this.run && this.chosen));
  }
  key(event) {
    const step = { ArrowLeft: -STEP, ArrowDown: -STEP, ArrowRight: STEP, ArrowUp: STEP }[event.key];
    if (event.target === this.slider && step) this.seek(this.position + step);
    else if (event.key !== " " || event.target.closest("button, select")) return;
    else if (this.playing) this.pause();
    else this.play();
    event.preventDefault();
  }
}

function clock(ms) {
  const seconds = Math.floor(ms / 100) / 10;
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(1).padStart(4, "0")}`;
}

export async function mount({ model, el, styles, asset, load }) {
  const [content, own, dashboard] = await Promise.all([
    asset("recording").then(JSON.parse), asset("player-styles"), asset("core").then((text) => load("dashboard", text)),
  ]);
  addStyles(el, "nbl-player-styles", own);
  const root = make("div", "nbl-recorded", el);
  const player = new Player(content);
  const { runs, run } = player;
  // In a notebook somebody has just asked for it. A page shows the moment where its runs part, or the end.
  const plays = model && !matchMedia("(prefers-reduced-motion: reduce)").matches;
  player.position = plays ? 0 : runs.length > 1 ? run.fork : run.length;
  player.build(root);
  const onKey = (event) => {  // before JupyterLab, whose shortcuts would take the arrow keys
    if (!player.bar.contains(event.target)) return;
    event.stopPropagation();
    player.key(event);
  };
  window.addEventListener("keydown", onKey, true);
  const close = await dashboard.mount({ model: player.model, el: make("div", "", root), styles, asset, load });
  if (plays) player.play();
  if (model && player.figures) asset("bokeh");  // while there is a kernel to ask
  return () => {
    window.removeEventListener("keydown", onKey, true);
    player.pause();
    close();
  };
}
