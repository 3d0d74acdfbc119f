// Draws fields of samples with the JavaScript halves of the kinds. `../frontend/view.js` stands before this text in the
// module, `statistics.js` and `explorer.js` after it.
//
// A kind is a module `kinds/<name>.js` that exports
//
//   draw(el, field, api)   draws a field of a sample in full; its name, type and statistics are drawn around it
//
// and may export
//
//   cover(el, field, api)  draws a field in the box of a card or in a line of the table, if `field.drawn`
//   words(el, field, api)  writes a field on a card if nothing is drawn; by default its summary, in large type
//
// `el` is the element to draw into. `field` has what the Python half has filled in: `summary`, `text`, `picture`, `size`,
// `data`, ... (`field.py`); what is empty is undefined. `api` has
//
//   make, svg              create elements, see `../frontend/view.js` and below
//   title                  what the drawing shows, for a screen reader
//   picture(el, number)    draws the PNG with this number among the attached buffers; nothing if it is undefined
//   annotated(el)          draws the picture of the field; if others are drawn over it (`overlays.py`), with these, and a
//                          box to hide them
//   wave(el, points)       draws an envelope: [[least, greatest], ...] of its sections, from 0 to 1
//   url(number, type)      a URL of an attached buffer
//   buffer(number)         an attached buffer, as an ArrayBuffer of its own
//   choose(number, name)   describes the sample again, with Context.choice() for this field; only in draw()
//   choice(el, label, options, at, name)  a list from which the user chooses; only in draw()
//   keys(node, handler)    has the handler called with a key that is pressed in this element; it returns whether it used it

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, parent, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  parent?.append(node);
  return node;
}

// A signal: [[least, greatest], ...] of its sections, from 0 to 1.
function wave(parent, points) {
  const picture = svg("svg", parent, { class: "nbx-wave", viewBox: `0 0 ${points.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const up = points.map(([, high], x) => `${x + 0.5},${(100 - 96 * high - 2).toFixed(1)}`);
  const down = points.map(([low], x) => `${x + 0.5},${(100 - 96 * low - 2).toFixed(1)}`).reverse();
  svg("polygon", picture, { points: [...up, ...down].join(" ") });
}

function bars(parent, counts, range) {
  const most = Math.max(...counts, 1);
  const figure = make("div", "nbx-bars", parent);
  const picture = svg("svg", figure, { viewBox: `0 0 ${counts.length} 40`, preserveAspectRatio: "none", role: "img", "aria-label": `histogram from ${range.join(" to ")}` });
  counts.forEach((count, x) => svg("rect", picture, { x: x + 0.05, width: 0.9, y: 40 - 40 * count / most, height: 40 * count / most }));
  const axis = make("div", "nbl-note nbx-axis", figure);
  for (const text of range) make("span", "", axis, text);
}

// Pictures and sounds of one card or sample, as URLs that must be released.
class Media {
  constructor(first, buffers) {
    this.first = first;
    this.buffers = buffers;
    this.urls = new Map();
  }
  url(number, type) {
    if (!this.urls.has(number)) {
      this.urls.set(number, URL.createObjectURL(new Blob([this.buffers[this.first + number]], { type })));
    }
    return this.urls.get(number);
  }
  buffer(number) {
    const { buffer, byteOffset, byteLength } = this.buffers[this.first + number];
    return buffer.slice(byteOffset, byteOffset + byteLength);
  }
  release() {
    for (const url of this.urls.values()) URL.revokeObjectURL(url);
    this.urls.clear();
  }
}

// Draws fields with `modules`, those of the kinds by name. `media` are the buffers of the card or sample.
class Drawing {
  constructor(modules) {
    this.modules = modules;
    this.annotations = true;  // whether they are shown, in all samples
  }
  kind(field) {  // a kind that was registered after the page was loaded is unknown here
    return this.modules[field.kind] ?? this.modules.object;
  }
  api(field, media, title, choose) {
    const picture = (parent, number) => {
      if (number === undefined) return;
      const node = make("img", "nbx-picture", parent);
      node.alt = title;
      node.draggable = false;
      if (field.size && Math.max(...field.size) < 128) node.classList.add("nbx-pixels");
      node.src = media.url(number, "image/png");
      return node;
    };
    const annotated = (parent) => {
      const node = picture(parent, field.picture);
      if (field.data?.annotated === undefined) return;
      const label = make("label", "nbx-annotated", parent);
      const box = Object.assign(make("input", "", label), { type: "checkbox", checked: this.annotations });
      box.setAttribute("aria-label", "with annotations");  // by which it keeps the focus when the sample is drawn again
      make("span", "", label, "with annotations");
      const show = () => { node.src = media.url(box.checked ? field.data.annotated : field.picture, "image/png"); };
      box.addEventListener("change", () => {
        this.annotations = box.checked;
        show();
      });
      show();
    };
    const choice = (parent, label, options, at, name) => {
      const select = make("select", "", parent);
      select.setAttribute("aria-label", label);
      select.append(...options.map((text, number) => Object.assign(make("option", "", null, text), { value: number })));
      select.value = at;
      select.addEventListener("change", () => choose(Number(select.value), name));
    };
    const url = (number, type) => media.url(number, type);
    const keys = (node, handler) => { node.nbxKeys = handler; };
    return { make, svg, title, picture, annotated, wave, url, buffer: (number) => media.buffer(number), choose, choice, keys };
  }
  full(parent, field, media, choose) {
    this.kind(field).draw(parent, field, this.api(field, media, field.path || "sample", choose));
  }
  // A sample in a line of the table: nothing, if there is nothing but words.
  thumb(parent, { index, fields, cover, media }) {
    const field = fields?.[cover];
    if (field?.drawn) this.kind(field).cover?.(parent, field, this.api(field, media, `sample ${index}`));
  }
  // A sample on a card.
  cover(parent, card) {
    parent.replaceChildren();
    const field = card.fields?.[card.cover];
    if (card.error !== undefined) make("div", "nbx-error", parent, card.error);
    else if (!field) make("div", "nbx-words", parent, "nothing to show");
    else if (field.drawn) this.thumb(parent, card);
    else if (this.kind(field).words) this.kind(field).words(parent, field, this.api(field, card.media, `sample ${card.index}`));
    else make("div", "nbx-words nbx-short", parent, field.text || field.summary);
  }
}
