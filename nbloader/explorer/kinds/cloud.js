// A point cloud that can be turned: by dragging, or with the arrow keys.

const STEP = 0.12;  // radians for each press of a key

export function cover(el, field, { picture }) {
  picture(el, field.picture);
}

export function draw(el, field, { make, picture, buffer, keys }) {
  if (field.data?.places === undefined) {
    make("div", "", el, field.summary);
    picture(el, field.picture);
    return;
  }
  const places = new Float32Array(buffer(field.data.places)), colors = new Uint8Array(buffer(field.data.colors));
  let { azimuth, elevation } = field.data;
  make("div", "", el, `${field.summary}; drag or use the arrow keys to turn`);
  const canvas = make("canvas", "nbx-cloud", el);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${field.summary}. Arrow keys turn the point cloud.`);
  const side = 320 * Math.min(2, devicePixelRatio || 1), count = places.length / 3;
  Object.assign(canvas, { width: side, height: side });
  const pen = canvas.getContext("2d"), order = new Uint32Array(count), near = new Float32Array(count);
  const paint = () => {
    const image = pen.createImageData(side, side), dots = new Uint32Array(image.data.buffer);
    const [ca, sa, ce, se] = [Math.cos(azimuth), Math.sin(azimuth), Math.cos(elevation), Math.sin(elevation)];
    for (let i = 0; i < count; i++) {
      order[i] = i;
      near[i] = places[3 * i + 2] * se - (places[3 * i] * sa + places[3 * i + 1] * ca) * ce;
    }
    order.sort((a, b) => near[a] - near[b]);
    const scale = side / 2.7, wide = count > 5000 ? 2 : 3;
    for (const i of order) {
      const [x, y, z] = [places[3 * i], places[3 * i + 1], places[3 * i + 2]];
      const left = Math.round(side / 2 + scale * (x * ca - y * sa)), up = z * ce + (x * sa + y * ca) * se;
      const top = Math.round(side / 2 - scale * up);
      const color = (255 << 24) | (colors[3 * i + 2] << 16) | (colors[3 * i + 1] << 8) | colors[3 * i];
      for (let dy = 0; dy < wide; dy++) {
        for (let dx = 0; dx < wide; dx++) {
          if (left + dx >= 0 && left + dx < side && top + dy >= 0 && top + dy < side) dots[(top + dy) * side + left + dx] = color;
        }
      }
    }
    pen.putImageData(image, 0, 0);
  };
  let from = null;
  const turn = (right, up) => {
    azimuth += right;
    elevation = Math.min(1.57, Math.max(-1.57, elevation + up));
    paint();
  };
  canvas.addEventListener("pointerdown", (event) => {
    from = event;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!from) return;
    turn((event.clientX - from.clientX) / 120, (event.clientY - from.clientY) / 120);
    from = event;
  });
  canvas.addEventListener("pointerup", () => { from = null; });
  keys(canvas, ({ key }) => {
    const moves = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] };
    if (!(key in moves)) return false;
    turn(...moves[key]);
    return true;
  });
  paint();
}
