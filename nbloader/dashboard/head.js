// The top of the view: the verdict, progress, figures, and the controls.

class Head {
  constructor(root, command) {
    this.verdict = make("p", "nbl-verdict", root);
    this.verdict.setAttribute("aria-live", "polite");
    const line = make("div", "nbl-progress", root);
    this.state = make("span", "nbl-chip", line);
    this.bar = make("div", "nbl-bar", line);
    this.bar.setAttribute("role", "progressbar");
    this.bar.setAttribute("aria-label", "Progress of the epoch");
    this.fill = make("span", "", this.bar);
    this.progress = make("span", "", line);
    this.tiles = make("div", "nbl-tiles", root);
    this.controls = new Controls(root, command);
    this.written = 0;
  }
  update(view) {
    // Its numbers change at every tick: people, and screen readers, get a new sentence every two seconds.
    const news = [view.state, view.cause, ...view.workers.map((w) => w.state === "stuck")].join();
    if (Date.now() - this.written > 2000 || news !== this.news) {
      write(this.verdict, view.verdict);
      this.written = Date.now();
      this.news = news;
    }
    write(this.state, view.state);
    const { share, text } = view.progress;
    this.fill.style.width = `${100 * (share ?? 0)}%`;
    if (share === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    write(this.progress, text);
    view.tiles.forEach((tile, i) => this.tile(i, tile));
    this.controls.update(view);
  }
  tile(i, { label, value, unit, note }) {
    let node = this.tiles.children[i];
    if (!node) {
      node = make("div", "nbl-tile", this.tiles);
      for (const name of ["nbl-label", "nbl-value", "nbl-note"]) make("div", name, node);
      make("span", "", node.children[1]);
      make("span", "nbl-unit", node.children[1]);
    }
    write(node.children[0], label);
    write(node.children[1].children[0], value);
    write(node.children[1].children[1], unit && ` ${unit}`);
    write(node.children[2], note);
    node.title = note;
  }
}

class Controls {
  constructor(root, command) {
    this.command = command;
    const line = make("div", "nbl-controls", root);
    const actions = make("div", "nbl-actions", line);
    this.view = null;
    this.pause = new Pending(button(actions, "Pause", "Pause the loader", () => {
      const was = this.view.state === "paused";
      this.pause.begin(was ? "resuming…" : "pausing…", (view) => (view.state === "paused") !== was);
      command(was ? "resume" : "pause");
    }), "Pause");
    this.step = button(actions, "Step", "Let one batch go to the loop, and pause", () => command("step"));
    this.restart = new Pending(button(actions, "Restart all", "Restart all workers", () => {
      const before = new Map(this.view.workers.map((w) => [w.id, w.incarnation]));
      this.restart.begin("restarting…", (view) => view.workers.every((w) => before.get(w.id) !== w.incarnation));
      command("restart");
    }), "Restart all");
    button(actions, "Save trace", "Save a trace of the last batches for Perfetto", () => command("trace"));
    this.sliders = make("div", "nbl-sliders", line);
    this.workers = this.slider("Workers", "Number of workers", 1, (value) => command("resize", null, value));
    this.prefetch = this.slider("Prefetch", "Batches asked for ahead, per worker", 0,
      (value) => command("prefetch", null, value));
    this.said = make("p", "nbl-said", root);
    this.said.setAttribute("role", "status");
  }
  slider(label, name, min, give) {
    const box = make("label", "nbl-slider", this.sliders, label);
    box.title = name;
    const input = make("input", "", box);
    Object.assign(input, { type: "range", min, max: 16, step: 1 });
    input.setAttribute("aria-label", name);
    const shown = make("output", "", box);
    const slider = { input, shown, box, until: 0 };
    input.addEventListener("input", () => {
      write(shown, input.value);
      slider.until = Date.now() + 2000;  // what the kernel says does not pull it from under the hand
    });
    input.addEventListener("change", () => {
      slider.until = Date.now() + 1500;
      give(Number(input.value));
    });
    return slider;
  }
  set(slider, value, most) {
    slider.box.hidden = value === null || value === undefined;
    if (slider.box.hidden || Date.now() < slider.until) return;
    slider.input.max = String(Math.max(most, value));
    slider.input.value = String(value);
    write(slider.shown, String(value));
  }
  update(view) {
    this.view = view;
    const paused = view.state === "paused";
    this.pause.idle = paused ? "Resume" : "Pause";
    this.pause.node.setAttribute("aria-label", `${this.pause.idle} the loader`);
    this.pause.check(view);
    this.restart.check(view);
    this.restart.node.hidden = !view.workers.length;
    this.sliders.hidden = !view.settings.workers;
    this.set(this.workers, view.settings.workers, view.settings.most);
    this.set(this.prefetch, view.settings.prefetch, 8);
  }
  say(text) {
    write(this.said, text);
    clearTimeout(this.silence);
    this.silence = setTimeout(() => write(this.said, ""), 10000);
  }
}
