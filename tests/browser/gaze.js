// The browser's half of the example kind in gaze.py.
//
// `draw` gets an empty element, and the field as describe() has filled it in. Name, type, statistics and notes are drawn
// around it. nbloader/explorer/drawing.js lists what else `api` offers, and what else a kind may export.

export function draw(el, field, { make, picture }) {
  const [[left, top], [right, bottom]] = field.data.corners;
  make("div", "", el, `${field.summary} from (${left}, ${top}) to (${right}, ${bottom})`);
  picture(el, field.picture);
}
