// One picture of a stack, a slice of a volume, or a picture of a video or a batch: a slider and a player for the others, the axis of a volume, the window of its values.

const PAUSE = 90;  // ms between two frames

export function draw(el, field, { make, picture, choose, choice, url }) {
  picture(el, field.picture);
  const { slices, slice, unit, axes, axis, windows, window: shown, frames } = field.data;
  const name = field.path || "the sample", still = el.querySelector(":scope > .nbx-picture");
  if (slices > 1) {
    const bar = make("div", "nbx-bar nbx-player", el);
    const play = make("button", "", bar, "▶");
    play.type = "button";
    play.hidden = !frames || !still;
    play.setAttribute("aria-label", `play ${name}`);
    play.title = `Play ${name}`;  // also while it plays: by this it keeps the focus when the sample is drawn again
    const slider = make("input", "nbx-slider", bar);
    Object.assign(slider, { type: "range", min: 0, max: slices - 1, value: slice });
    slider.setAttribute("aria-label", `${unit} of ${name}`);
    const number = make("span", "nbl-note", bar, `${unit} ${slice}`);
    const film = frames && still ? filmOf(make, still, url(frames.strip, "image/png"), frames) : null;
    const show = (at) => {
      slider.value = at;
      number.textContent = `${unit} ${at}`;
      film?.show(at);
    };
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      choose(Number(slider.value));
    };
    play.addEventListener("click", () => {
      if (timer !== null) {
        stop();
        return;
      }
      play.textContent = "❚❚";
      play.setAttribute("aria-label", `pause ${name}`);
      timer = setInterval(() => {
        if (!play.isConnected) clearInterval(timer);
        else show((Number(slider.value) + frames.step) % slices);
      }, PAUSE);
    });
    slider.addEventListener("input", () => show(Number(slider.value)));
    slider.addEventListener("change", () => {
      clearInterval(timer);
      timer = null;
      choose(Number(slider.value));
    });
  }
  if (axes > 1) choice(el, `axis of ${name}`, ["slices along axis 0", "slices along axis 1", "slices along axis 2"], axis, "axis");
  if (windows) choice(el, `window of ${name}`, windows, shown, "window");
}

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

// The small frames, in place of the picture from the first time that one is shown.
function filmOf(make, still, url, { count, step }) {
  const canvas = make("canvas", "nbx-picture nbx-pixels");
  canvas.setAttribute("aria-hidden", "true");
  const strip = new Image();
  strip.src = url;
  let wanted = 0;
  const paint = () => {
    const high = strip.naturalHeight / count;
    if (!high) return;
    if (!canvas.isConnected) {
      const { width, height } = still.getBoundingClientRect();
      Object.assign(canvas.style, { width: `${width}px`, height: `${height}px`, minWidth: "0" });
      Object.assign(canvas, { width: strip.naturalWidth, height: high });
      still.replaceWith(canvas);
    }
    const at = Math.min(count - 1, Math.round(wanted / step));
    canvas.getContext("2d").drawImage(strip, 0, at * high, strip.naturalWidth, high, 0, 0, canvas.width, canvas.height);
  };
  strip.addEventListener("load", () => { if (wanted) paint(); });
  return {
    show(at) {
      wanted = at;
      paint();
    },
  };
}
