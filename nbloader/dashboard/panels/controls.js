// Buttons and sliders.

const HOLD = 2000;  // ms in which the kernel does not move a slider that the user has just moved
const SAID = 10000;  // ms for which a message is visible

export function create(el, api) {
  const { make, write, describe, button, Pending } = api;
  let data = null, silence = null;
  const line = make("div", "nbl-controls", el);
  const actions = make("div", "nbl-actions", line);

  const pause = new Pending(button(actions, "Pause", "Pause the loader", () => {
    const paused = data.state === "paused";
    pause.begin(paused ? "resuming…" : "pausing…", ({ state }) => (state === "paused") !== paused);
    api.command(paused ? "resume" : "pause");
  }), "Pause");
  button(actions, "Step", "Deliver one batch to the loop, then pause", () => api.command("step"));
  const restart = new Pending(button(actions, "Restart all", "Restart all workers", () => {
    const before = data.incarnations;
    restart.begin("restarting…", ({ incarnations }) => incarnations.every((now, worker) => now !== before[worker]));
    api.command("restart");
  }), "Restart all");
  const tune = new Pending(button(actions, "Tune", "", () => {
    const { running, changed } = data.tuning?.chosen ? {} : data.tuning ?? {};
    const before = JSON.stringify([running, changed]);
    tune.begin("…", ({ tuning }) => JSON.stringify([tuning?.running, tuning?.changed]) !== before);
    api.command(running ? "stop_tuning" : changed ? "undo_tuning" : "tune");
  }), "Tune");
  button(actions, "Save trace", "Save a trace of the recent batches for Perfetto", () => api.request("trace"));

  const sliders = make("div", "nbl-sliders", line);
  const addSlider = (label, name, min, command) => {
    const box = make("label", "nbl-slider", sliders, label);
    box.title = name;
    const input = make("input", "", box);
    Object.assign(input, { type: "range", min, max: 16, step: 1 });
    input.setAttribute("aria-label", name);
    const shown = make("output", "", box);
    const slider = { box, input, shown, heldUntil: 0 };
    input.addEventListener("input", () => {
      write(shown, input.value);
      slider.heldUntil = Date.now() + HOLD;
    });
    input.addEventListener("change", () => {
      slider.heldUntil = Date.now() + HOLD;
      api.command(command, { value: Number(input.value) });
    });
    return slider;
  };
  const setSlider = ({ box, input, shown, heldUntil }, value, max) => {
    box.hidden = value === null;
    if (box.hidden || Date.now() < heldUntil) return;
    input.max = String(Math.max(max, value));
    input.value = String(value);
    write(shown, String(value));
  };
  const workers = addSlider("Workers", "Number of workers", 1, "resize");
  const prefetch = addSlider("Prefetch", "Batches prefetched per worker", 0, "prefetch");

  const tuned = make("p", "nbl-said", el);
  const said = make("p", "nbl-said", el);
  said.setAttribute("role", "status");
  const say = (text) => {
    write(said, text);
    clearTimeout(silence);
    silence = setTimeout(() => write(said, ""), SAID);
  };

  const showTuning = (tuning) => {
    const { running, changed, text } = tuning?.chosen ? {} : tuning ?? {};  // a chosen setting is shown with its button
    tune.node.hidden = !data.workers;
    tune.idle = running ? "Stop tuning" : changed ? "Undo tuning" : "Tune";
    const name = running ? "End the search and keep the best setting so far"
      : changed ? "Return to the settings before the search"
      : "Try other numbers of workers and batches to prefetch while the loop runs, for a minute, and keep what is faster";
    tune.check(data);
    describe(tune.node, name);
    write(tuned, text ?? "");
  };

  return {
    update(next) {
      data = next;
      pause.idle = data.state === "paused" ? "Resume" : "Pause";
      pause.check(data);
      describe(pause.node, `${pause.idle} the loader`);
      restart.check(data);
      restart.node.hidden = !data.incarnations.length;
      sliders.hidden = !data.workers;
      showTuning(data.tuning);
      setSlider(workers, data.workers, data.maxWorkers);
      setSlider(prefetch, data.prefetch, 8);
    },
    async receive({ said: text, file }, buffers) {
      if (text) say(text);
      if (file) {
        await api.download(file, "application/json", buffers[0]);
        say(`${file} saved: open it at ui.perfetto.dev`);
      }
    },
    remove() {
      clearTimeout(silence);
    },
  };
}
