// A view of an explorer: gallery and table of samples, and one sample in full. `../frontend/view.js`, `drawing.js` and
// `statistics.js` stand before this text in the module; `conversation.py` is the other side.
//
// Only what is on screen has nodes, and a list of any length scrolls: beyond the height that browsers support, `top` (in
// pixels of the whole list) is mapped to the scroll bar, and the wheel moves `top` itself.

const GAP = 8, CARD = 150, LINE = 30, TALL = 8e6, FIXED = 340, COLUMN = 80, LINE_PADDING = 10;  // pixels; TALL: the highest scroll area; FIXED: columns that every table has
const COLUMNS = 24;  // most fields of a card: CARD_FIELDS in field.py
const SIZES = { min: 90, max: 240, step: 30 };  // least widths of a card
const KEPT = 1500;  // cards that the page keeps
const BETWEEN = 50;  // ms between two requests for what is on screen
const SLOW = 2000;  // ms after which a sample that is not there can be given up, and is requested again
const TICK = 250;  // ms between two looks at how long the samples on screen have been missing
const WHOLE = -1;  // in place of an index: the batch itself
const HEADING = -2;  // and below: headings of groups
const ORDERS = {
  all: "All samples", selected: "Selected", slowest: "Slowest so far", filtered: "Filtered", delivered: "Delivered last", failed: "Failed so far",
  duplicate: "Duplicates", alike: "Look alike", "not finite": "Not finite", missing: "Missing values", constant: "Constant", shape: "Of another shape",
};

const whole = (n) => n.toLocaleString("en-US");
const time = (s) => (s < 1e-3 ? `${Math.round(s * 1e6)} µs` : s < 1 ? `${(s * 1e3).toFixed(s < 0.01 ? 1 : 0)} ms` : `${s.toFixed(1)} s`);
const bytes = (n) => (n < 1000 ? `${Math.round(n)} B` : n < 1e6 ? `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB` : `${(n / 1e6).toFixed(1)} MB`);

function caption(card) {
  return card.error !== undefined ? "failed" : card.caption.join(" · ");
}

// Called once the widget exists, maybe before it is shown.
export const prepare = ({ asset, load }) => loadModules("kinds", asset, load);

export async function mount({ model, el, styles, asset, load }) {
  const drawing = new Drawing(await loadModules("kinds", asset, load));
  addStyles(el, "nbx-styles", styles);
  const root = make("div", "nbl nbx", el);
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "nbloader explorer");

  const head = make("div", "nbx-head", root);
  const title = make("span", "nbx-title", head, "Waiting for the kernel…");
  const tools = make("div", "nbx-tools", head);
  const modes = make("div", "nbx-modes", tools);
  modes.setAttribute("role", "group");
  modes.setAttribute("aria-label", "how samples are shown");
  const modeButtons = {
    gallery: button(modes, "Gallery", "Show a gallery", () => chooseMode("gallery")),
    table: button(modes, "Table", "Show a table", () => chooseMode("table")),
  };
  const sizes = make("input", "nbx-size", tools);
  Object.assign(sizes, { type: "range", ...SIZES, value: CARD, title: "Size of the pictures" });
  sizes.setAttribute("aria-label", "size of the pictures");
  const orders = make("select", "", tools);
  orders.setAttribute("aria-label", "which samples are shown");
  const go = make("input", "nbx-go", tools);
  Object.assign(go, { type: "number", min: 0, placeholder: "Go to index" });
  go.setAttribute("aria-label", "go to the sample with this index");
  const search = make("input", "nbx-go", tools);
  Object.assign(search, { type: "search", placeholder: "Search texts" });
  search.setAttribute("aria-label", "search the texts of the samples that were read");
  const sorting = make("select", "", tools);
  sorting.setAttribute("aria-label", "sort by");
  const way = button(tools, "↑", "Sort in descending order", () => arrange({ descending: !arrangement.descending }));
  const grouping = make("select", "", tools);
  grouping.setAttribute("aria-label", "group by");
  const wholeBatch = button(tools, "Whole batch", "Show the batch as the loop got it", () => open(WHOLE));
  wholeBatch.hidden = true;
  const chosen = make("span", "nbl-note nbx-chosen", tools);
  const clear = button(tools, "Clear", "Clear the selection", () => select([]));
  const all = button(tools, "Select all", "Select all samples of this list", () => select([...selected, ...order].filter((index) => index > HEADING)));
  const asPython = button(tools, "As Python", "Show the selection, filters and order as Python", () => connection.send({ kind: "code" }));
  const again = button(tools, "Try again", "Read the samples of this list again, with the dataset as it is now", () => connection.send({ kind: "retry", problem: orderName }));

  const notes = make("div", "nbl-note", root);
  const code = make("pre", "nbx-text", root);
  code.hidden = true;
  const problem = make("div", "nbx-problem", root);
  problem.setAttribute("role", "alert");
  const main = make("div", "nbx-main", root);
  const left = make("div", "nbx-left", main);
  const header = make("div", "nbx-line nbx-columns", left);
  const scroller = make("div", "nbx-scroll", left);
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "listbox");
  scroller.setAttribute("aria-label", "samples");
  scroller.setAttribute("aria-multiselectable", "true");
  const spacer = make("div", "nbx-spacer", scroller);
  const layer = make("div", "nbx-layer", spacer);
  const empty = make("div", "nbx-empty", left);
  const detail = make("section", "nbx-detail", main);
  detail.setAttribute("aria-label", "one sample");
  for (const node of [main, header, empty, detail, clear, all, asPython, again, way, grouping]) node.hidden = true;  // until there is something to show
  const status = make("div", "nbl-note nbx-status", root);
  status.setAttribute("role", "status");
  const statistics = new Statistics(root, {
    send: (message) => connection.send(message),
    open: (index) => {
      open(index);
      detail.scrollIntoView({ block: "nearest" });  // the plots are far below
    },
    toggle: (index) => toggle(index),
    list: (name) => askList({ kind: "order", name }),
    arrange: (part) => arrange(part),
  });
  statistics.node.hidden = true;
  const prefix = `nbx-${Math.random().toString(36).slice(2)}`;

  const NOTHING = { filters: {}, words: "", sort: "", descending: false, group: "" };
  let arrangement = { ...NOTHING }, groups = [];
  let state = null, mode = "gallery", order = null, orderName = "all", reasons = {};
  let awaited = "";  // the name of the list that was requested and has not arrived
  let settled = false;  // whether the mode was determined: by the user, or by the first samples
  let top = 0, width = 0, deep = 0, across = 1, high = LINE, wide = CARD, current = 0, expectedScroll = -1;
  let opened = null, waiting = null;  // opened: { index, draw, choices, since, sample, draws, delivered }
  let selected = new Set(), columns = [], frame = 0, ticking = null;
  let requested = null, checking = false, pending = 0, sent = 0;  // the last request: { first, last, order, middle }, and when
  const cards = new Map(), asked = new Map(), nodes = new Map();  // by index, by index, by position

  const count = () => (order ? order.length : state?.total ?? 0);
  const indexAt = (position) => (order ? order[position] : position);
  const positionOf = (index) => (order ? order.indexOf(index) : index);
  const lines = () => Math.ceil(count() / across);
  const height = () => lines() * high + gap();
  const gap = () => (mode === "gallery" ? GAP : 0);  // above the first row and below the last one
  const tallest = () => Math.max(0, height() - deep);
  const ratio = () => {
    const room = Math.min(height(), TALL) - deep;
    return height() <= TALL || room <= 0 ? 1 : tallest() / room;
  };

  // ---- layout: which positions are on screen ----------------------------------------------------------------------

  const resizes = () => scroller.clientWidth - 2 !== width || scroller.clientHeight !== deep;  // since the last layout
  const layout = () => {
    [width, deep] = [scroller.clientWidth - 2, scroller.clientHeight];
    if (mode === "gallery") {
      across = Math.max(1, Math.floor((width - GAP) / (Number(sizes.value) + GAP)));
      wide = (width - GAP) / across - GAP;
      high = Math.round(wide * 0.8) + 42 + GAP;
    } else [across, wide, high] = [1, width, LINE];
    spacer.style.height = `${Math.min(height(), TALL)}px`;
    layer.style.height = `${deep}px`;
    drawHeader();
    moveTo(top);
  };
  const resize = () => {  // what is opened stays on screen: its row is another one in a narrower list
    const at = opened ? positionOf(opened.index) : -1, seen = nodes.has(at);
    layout();
    if (seen) show(at);
  };
  const moveTo = (to) => {
    top = Math.min(Math.max(0, to), tallest());
    expectedScroll = Math.round(top / ratio());
    scroller.scrollTop = expectedScroll;
    schedule();
  };
  const schedule = () => {
    frame ||= requestAnimationFrame(() => { frame = 0; draw(); });
    if (!checking) queueMicrotask(request);  // once the event has been handled: the kernel reads while the page draws
    checking = true;
  };
  const visible = () => {
    const first = Math.floor(top / high) * across;
    const last = Math.min(count(), (Math.floor((top + deep) / high) + 1) * across);
    return [first, last];
  };

  const draw = () => {
    if (!state) return;
    if (resizes()) {  // for a moment, such as between two themes: no ResizeObserver tells when it ends
      resize();
      return;
    }
    const [first, last] = visible();
    for (const [position, node] of nodes) {
      if (position < first || position >= last) {
        node.remove();
        nodes.delete(position);
      }
    }
    for (let position = first; position < last; position++) {
      let node = nodes.get(position);
      if (!node) {
        node = make("div", "", layer);
        node.id = `${prefix}-${position}`;
        node.setAttribute("role", "option");
        nodes.set(position, node);
      }
      place(node, position);
    }
    scroller.setAttribute("aria-activedescendant", nodes.has(current) ? `${prefix}-${current}` : "");
    empty.hidden = count() > 0;
    main.classList.toggle("nbx-nothing", !empty.hidden);
    scroller.hidden = !empty.hidden;
    header.hidden = mode !== "table" || !empty.hidden;
    write(empty, orderName === "all" ? "There are no samples: the dataset is empty." : `No samples: ${ORDERS[orderName].toLowerCase()}.`);
    const from = first - headingsBefore(first), to = last - headingsBefore(last);
    const shown = to > from ? `${order ? "" : "samples "}${whole(order ? from + 1 : from)} to ${whole(order ? to : to - 1)} of ${whole(count() - headingsBefore(count()))}` : "";
    write(status, gone() ? "The kernel is gone." : awaited ? `Loading the list: ${ORDERS[awaited].toLowerCase()}…` : shown);
    scroller.setAttribute("aria-busy", String(awaited !== ""));
  };

  const place = (node, position) => {
    const index = indexAt(position), card = cards.get(index), heading = headingOf(index);
    const x = mode === "gallery" ? GAP + (position % across) * (wide + GAP) : 0;
    const y = Math.floor(position / across) * high - top + gap();
    node.style.transform = `translate(${x}px, ${y}px)`;
    node.style.width = `${wide}px`;
    node.style.height = `${mode === "gallery" ? high - GAP : high}px`;
    if (heading) {
      fillHeading(node, heading, position);
      return;
    }
    const waited = card ? 0 : Date.now() - (asked.get(index) ?? Date.now());
    const drawn = `${mode} ${index} ${reasons[index] ?? ""} ${card?.version ?? `waiting ${waited >= SLOW ? Math.floor(waited / 1000) : 0}`} ${mode === "table" ? fitting().length : ""}`;
    if (node.dataset.drawn !== drawn) {
      node.dataset.drawn = drawn;
      (mode === "gallery" ? fillCard : fillLine)(node, index, card, waited);
    }
    node.className = mode === "gallery" ? "nbx-card" : "nbx-line";
    node.classList.toggle("nbx-current", position === current);
    node.classList.toggle("nbx-selected", selected.has(index));
    node.classList.toggle("nbx-failed", card?.error !== undefined);
    node.classList.toggle("nbx-opened", opened?.index === index);
    node.setAttribute("aria-selected", String(selected.has(index)));
    node.setAttribute("aria-posinset", String(position + 1));
    node.setAttribute("aria-setsize", String(count()));
    const check = node.querySelector(".nbx-check");
    if (check) write(check, selected.has(index) ? "✓" : "");
  };

  const headingsBefore = (position) => {  // headings are in the list, but are no samples
    let [at, found] = [0, 0];
    while (found < groups.length && at < position) at += groups[found++].listed + 1;
    return found;
  };
  const headingOf = (index) => (index <= HEADING ? groups[HEADING - index] : undefined);
  const fillHeading = (node, { name, size, listed }, position) => {
    node.className = mode === "gallery" ? "nbx-card nbx-heading" : "nbx-line nbx-heading";
    node.classList.toggle("nbx-current", position === current);
    node.removeAttribute("aria-selected");
    const drawn = `${mode} heading ${name} ${size}`;
    if (node.dataset.drawn === drawn) return;
    node.dataset.drawn = drawn;
    node.replaceChildren();
    make("strong", "", node, isNaN(name) ? name : `${arrangement.group} ${name}`);  // a number alone says nothing
    make("span", "nbl-note", node, size > listed ? `${whole(size)} samples, the first ${whole(listed)} here: show all` : `${whole(size)} ${size === 1 ? "sample" : "samples"}`);
    node.setAttribute("aria-label", `group ${name}, ${whole(size)} samples`);
  };
  const checkBox = (parent) => {
    const check = make("span", "nbx-check", parent);
    check.setAttribute("aria-hidden", "true");  // the option itself has aria-selected; Space toggles it
    check.title = "Select (Space)";
    return check;
  };
  const fillWaiting = (parent, index, waited) => {
    const box = make("div", "nbx-waiting", parent);
    make("span", "", box, waited >= SLOW ? `reading for ${Math.floor(waited / 1000)} s` : "");
    if (waited >= SLOW) button(box, "Give up", `Give up reading sample ${index}`, () => connection.send({ kind: "give_up", index })).tabIndex = -1;
  };
  const fillCard = (node, index, card, waited) => {
    node.replaceChildren();
    const cover = make("div", "nbx-cover", node);
    if (card) drawing.cover(cover, card);
    else fillWaiting(cover, index, waited);
    const foot = make("div", "nbx-foot", node);
    make("span", "nbx-index", foot, whole(index));
    const reason = make("span", reasons[index] ? "nbx-caption nbx-reason" : "nbx-caption", foot, reasons[index] ?? (card ? caption(card) : ""));
    reason.title = reason.textContent;
    if (card) make("span", "nbx-cost", foot, time(card.seconds));
    checkBox(node);
    node.setAttribute("aria-label", `sample ${index}${card ? `, ${caption(card)}` : ", being read"}${reasons[index] ? `, ${reasons[index]}` : ""}`);
  };
  const fillLine = (node, index, card, waited) => {
    node.replaceChildren();
    checkBox(node);
    make("span", "nbx-cell nbx-index", node, whole(index));
    const cover = make("span", "nbx-cell nbx-thumb", node);
    if (!card) {
      fillWaiting(node, index, waited);
      return;
    }
    drawing.thumb(cover, card);
    make("span", "nbx-cell nbx-number", node, time(card.seconds));
    make("span", "nbx-cell nbx-number", node, card.nbytes ? bytes(card.nbytes) : "");
    if (reasons[index]) make("span", "nbx-cell nbx-reason", node, reasons[index]).title = reasons[index];
    if (card.error !== undefined) make("span", "nbx-cell nbx-error", node, card.error);
    else for (const name of fitting()) {
      const field = card.fields.find((each) => each.path === name);
      make("span", field?.absent ? "nbx-cell nbl-note" : "nbx-cell", node, field?.summary ?? "");
    }
    node.setAttribute("aria-label", `sample ${index}, ${caption(card)}`);
  };
  const fitting = () => columns.slice(0, Math.max(1, Math.floor((width - FIXED) / COLUMN)));
  const drawHeader = () => keepFocus(header, fillHeader, () => scroller);
  const fillHeader = () => {
    header.replaceChildren();
    make("span", "nbx-check", header);
    const size = [...cards.values()].some((card) => card.nbytes) ? "Size" : "";  // rows of plain values have none
    for (const [name, kind] of [["Index", "nbx-index"], ["", "nbx-thumb"], ["Time", "nbx-number"], [size, "nbx-number"]]) {
      make("span", `nbx-cell ${kind}`, header, name);
    }
    if (Object.keys(reasons).length) make("span", "nbx-cell", header, "Problem");
    for (const name of fitting()) {
      const column = name || "value", way = arrangement.sort === column ? (arrangement.descending ? " ↓" : " ↑") : "";
      const cell = button(header, `${column}${way}`, `Sort by ${column}`, () => arrange({ sort: column, descending: arrangement.sort === column && !arrangement.descending }));
      cell.className = "nbx-cell nbx-sorts";
    }
    const hidden = columns.slice(fitting().length), more = columns.length >= COLUMNS ? " or more" : "";
    if (hidden.length) make("span", "nbx-more", header, `+${hidden.length}`).title = `Also: ${hidden.join(", ")}${more}. Open a sample to see all.`;
    header.style.paddingRight = `${LINE_PADDING + scroller.offsetWidth - width}px`;  // lines end at the scroll bar
  };

  // ---- what the kernel reads: what is on screen, from the current sample or the middle outwards, then the next screen ----------------------------------------------

  // It sends each sample when it has read it, so a screen is requested once, and what it then lacks after `SLOW` again: a
  // Jupyter server drops messages while a cell prints too much.
  const request = () => {
    checking = false;
    clearTimeout(pending);
    if (!state || gone()) return;
    const [first, last] = visible();
    const middle = current >= first && current < last ? current : (first + last) / 2, screen = [], missing = [];
    const near = [...Array(last - first).keys()].map((at) => first + at).sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle));
    for (const position of near) {
      const index = indexAt(position);
      if (index <= HEADING) continue;
      screen.push(index);
      const card = cards.get(index);
      if (card) {
        cards.delete(index);  // the last use is at the end
        cards.set(index, card);
      } else missing.push(index);
    }
    waitFor(missing);
    const late = missing.length > 0 && Date.now() - sent > SLOW;
    for (let position = last; position < Math.min(count(), 2 * last - first); position++) {
      if (indexAt(position) > HEADING && !cards.has(indexAt(position))) missing.push(indexAt(position));
    }
    const same = requested?.first === first && requested.last === last && requested.order === order;
    if (same && !late && (requested.middle === middle || !missing.length)) return;
    const rest = sent + BETWEEN - Date.now();
    if (rest > 0) {
      pending = setTimeout(request, rest);
      return;
    }
    sent = Date.now();
    requested = { first, last, order, middle };
    connection.send({ kind: "want", indices: missing, screen });
  };
  const requestAgain = () => {
    requested = null;
    schedule();
  };
  // Since when each sample on screen is missing; while some are, the seconds are drawn.
  const waitFor = (missing) => {
    const there = new Set(missing);
    for (const index of asked.keys()) if (!there.has(index)) asked.delete(index);
    for (const index of missing) if (!asked.has(index)) asked.set(index, Date.now());
    if (missing.length) ticking ??= setInterval(schedule, TICK);
    else {
      clearInterval(ticking);
      ticking = null;
    }
  };
  const take = (message, buffers) => {
    const arrived = new Set(message.cards.map((content) => content.index));
    for (const content of message.cards) {
      cards.get(content.index)?.media.release();
      const card = { ...content, media: new Media(content.first, buffers), version: `read ${Math.random()}` };
      cards.delete(card.index);
      cards.set(card.index, card);
      asked.delete(card.index);
      for (const field of card.fields ?? []) {
        if (columns.length < COLUMNS && !field.drawn && !columns.includes(field.path)) {
          columns.push(field.path);
          drawHeader();
        }
      }
    }
    if (!settled) chooseMode(state.tabular && !message.cards.some(({ fields, cover }) => fields?.[cover]?.drawn) ? "table" : mode);
    for (const [position, node] of nodes) {  // now, not with the next frame: pictures are decoded meanwhile
      if (arrived.has(indexAt(position))) place(node, position);
    }
    statistics.changed();
    if (!sorting.options.length) askColumns();
    const [first, last] = visible();
    for (const [index, card] of cards) {
      if (cards.size <= KEPT) break;
      const position = positionOf(index);
      if (position >= first && position < last) continue;
      card.media.release();
      cards.delete(index);
    }
    schedule();
  };

  // ---- commands ----------------------------------------------------------------------------------------------------

  const gone = () => connection.gone;
  const askColumns = () => connection.send({ kind: "columns" });
  const askList = (message) => {  // the list before stays on screen until it arrives, which takes long if the kernel is busy
    awaited = message.name;
    connection.send(message);
    schedule();
  };
  const keepPlace = (change) => {  // the first sample on screen stays there
    const at = indexAt(Math.floor(top / high) * across);
    change();
    layout();
    if (at !== undefined) moveTo(Math.floor(positionOf(at) / across) * high);
  };
  const setMode = (to) => keepPlace(() => {
    mode = to;
    for (const [name, node] of Object.entries(modeButtons)) node.setAttribute("aria-pressed", String(name === to));
    for (const node of nodes.values()) node.remove();
    nodes.clear();
    header.hidden = mode !== "table";
    sizes.hidden = mode === "table";
  });
  const chooseMode = (to) => {
    settled = true;
    if (to !== mode) setMode(to);
  };
  // Filters, words, a sorting and groups apply together.
  const arrange = (part) => {
    arrangement = { ...arrangement, ...part };
    showArrangement();
    const { filters, words, sort, group } = arrangement;
    if (Object.keys(filters).length || words.trim() || sort || group) askList({ kind: "filter", name: "filtered", ...arrangement });
    else {
      connection.send({ kind: "order", name: "all" });  // or view.code() would still have it
      setOrder("all", null);
    }
  };
  const showArrangement = () => {
    if (search.value !== arrangement.words) search.value = arrangement.words;
    sorting.value = arrangement.sort;
    grouping.value = arrangement.group;
    write(way, arrangement.descending ? "↓" : "↑");
    way.hidden = !arrangement.sort;
    way.setAttribute("aria-label", arrangement.descending ? "Sort in ascending order" : "Sort in descending order");
    code.hidden = true;
    asPython.hidden = !selected.size && orderName !== "filtered";
  };
  const showColumns = ({ sortable, groupable }) => {
    for (const [select, first, names, chosen] of [[sorting, "Sort by…", ["index", ...sortable], arrangement.sort], [grouping, "Group by…", groupable, arrangement.group]]) {
      const options = ["", ...names];
      if ([...select.options].map(({ value }) => value).join("\n") === options.join("\n")) continue;
      select.replaceChildren(...options.map((name) => Object.assign(make("option", "", null, name || first), { value: name })));
      select.value = chosen;
    }
    grouping.hidden = groupable.length === 0;
  };
  // `found` are the indices of a list, behind the heading of its group each.
  const withHeadings = (found) => {
    if (!groups.length) return found;
    let from = 0;
    return Float64Array.from(groups.flatMap(({ listed }, at) => [HEADING - at, ...found.slice(from, from += listed)]));
  };
  const setOrder = (name, indices, why = {}, headings = []) => {
    awaited = "";
    orderName = name;
    groups = headings;
    order = indices && withHeadings(indices);
    reasons = why;
    orders.value = name;
    keepFocus(tools, () => {
      again.hidden = !(name in PROBLEMS) || !indices.length;
      all.hidden = name === "selected" || !indices?.length || indices.length > 100000;
    }, () => scroller);
    if (name !== "filtered") {
      arrangement = { ...NOTHING };
      statistics.reset();
    }
    showArrangement();
    for (const node of nodes.values()) node.remove();
    nodes.clear();
    current = 0;
    top = 0;
    layout();
  };
  const select = (indices) => {
    selected = new Set(indices);
    showSelection();
    connection.send({ kind: "select", indices: [...selected] });
  };
  const toggle = (index) => {
    if (index !== undefined && index > HEADING) select(selected.has(index) ? [...selected].filter((each) => each !== index) : [...selected, index]);
  };
  const showSelection = () => {
    write(chosen, selected.size ? `${whole(selected.size)} selected` : "");
    keepFocus(tools, () => {
      clear.hidden = !selected.size;
      asPython.hidden = !selected.size && orderName !== "filtered";
    }, () => scroller);
    if (opened) drawDetail();
    schedule();
  };
  const setCurrent = (position) => {
    current = Math.min(Math.max(0, position), Math.max(0, count() - 1));
    show(current);
  };
  const show = (position) => {  // its row, whole
    const y = Math.floor(position / across) * high, bottom = y + high + gap();
    if (y < top) moveTo(y);
    else if (bottom > top + deep) moveTo(bottom - deep);
    else schedule();
  };
  const open = (index, draw = 0, choices = {}) => {
    if (index === undefined) return;
    const heading = headingOf(index);
    if (heading) {  // all samples of the group
      statistics.choose(heading.filters);
      arrange({ filters: heading.filters, group: "" });
      return;
    }
    const same = opened?.index === index;
    opened = { index, draw, choices, since: same ? opened.since : Date.now(), sample: same ? opened.sample : null, draws: same ? opened.draws : null, delivered: same ? opened.delivered : null };
    connection.send({ kind: "open", index, draw, choices });
    drawDetail();
    layout();
    if (!same && index !== WHOLE && positionOf(index) >= 0) setCurrent(positionOf(index));  // fewer fit beside the detail
  };
  const close = () => {
    opened?.sample?.media.release();
    opened = null;
    drawDetail();
    layout();
    scroller.focus();
  };
  const step = (by) => {
    setCurrent(Math.max(0, positionOf(opened?.index ?? 0)) + by);
    open(indexAt(current));
  };
  const reveal = (index) => {
    if (order) setOrder("all", null);
    setCurrent(index);
    open(index);
  };

  // ---- one sample in full ------------------------------------------------------------------------------------------

  const drawDetail = () => keepFocus(detail, fillDetail, () => (opened ? detail.querySelector("button") : scroller));
  const fillDetail = () => {
    detail.hidden = !opened;
    main.classList.toggle("nbx-with-detail", !!opened);
    const scrolled = detail.scrollTop;
    detail.replaceChildren();
    if (!opened) return;
    const { index, sample } = opened;
    const bar = make("div", "nbx-bar", detail);
    make("strong", "", bar, index === WHOLE ? "The batch" : `Sample ${whole(index)}`);
    if (index !== WHOLE) {
      button(bar, "‹", "Previous sample", () => step(-1));
      button(bar, "›", "Next sample", () => step(1));
      const pick = button(bar, selected.has(index) ? "✓ Selected" : "Select", "Select this sample", () => toggle(index));
      pick.setAttribute("aria-pressed", String(selected.has(index)));
      if (state.embedded) button(bar, "Similar", "List the most similar samples", () => connection.send({ kind: "similar", index }));
    }
    button(bar, "×", "Close the sample", close).classList.add("nbx-close");
    const draws = make("div", "nbx-bar", detail);
    draws.hidden = state.fixed || state.tabular;
    make("span", "nbl-note", draws, `random draw ${opened.draw}`);
    button(draws, "Another draw", "The same sample under another seed", () => open(index, opened.draw + 1, opened.choices));
    if (opened.draw) button(draws, "First", "The first draw", () => open(index, 0, opened.choices));
    button(draws, "8 side by side", "Eight draws of this sample side by side", () => {
      opened.draws = new Map();
      connection.send({ kind: "draws", index, count: 8 });
      drawDetail();
    });
    if (opened.draws) {
      drawBeside([...Array(8).keys()].map((draw) => ({ card: opened.draws.get(draw), lines: [`draw ${draw}`] })));
      const { batches, problem } = opened.delivered ?? { batches: [], problem: "" };
      if (batches.length) make("div", "nbl-note", detail, "As the loader delivered it:");
      else if (problem) make("div", "nbl-note", detail, `As delivered: not shown. ${problem}`);
      drawBeside(batches.map(([epoch, batch, position]) => ({
        card: opened.draws.get(`${epoch}:${batch}`),
        lines: [`epoch ${whole(epoch)}`, `batch ${whole(batch)}`],
        code: `loader.replay(${epoch}, ${batch}).sample(${position})`,
      })));
    }
    if (!sample) drawWaiting();
    else if (sample.error !== undefined) drawFailure(sample);
    else {
      const size = sample.nbytes ? `, ${bytes(sample.nbytes)}` : "";
      const cost = `${time(sample.seconds)} to read, ${time(sample.cpu_seconds)} of CPU time${size}`;
      make("p", "nbl-note", detail, cost);
      const inside = sample.fields[0]?.container && !sample.fields[0].drawn ? sample.fields.slice(1) : sample.fields;
      for (const field of inside) drawField(field, sample.media);
      if (!inside.length) make("p", "nbl-note", detail, sample.fields[0]?.summary ?? "");
      if (sample.left_out) make("p", "nbl-note", detail, `${whole(sample.left_out)} more fields`);
    }
    detail.scrollTop = scrolled;
  };
  const drawBeside = (versions) => {
    if (!versions.length) return;
    const row = make("div", "nbx-draws", detail);
    for (const { card, lines, code } of versions) {
      const box = make("div", "nbx-draw", row);
      const cover = make("div", "nbx-cover", box);
      if (card) drawing.cover(cover, card);
      for (const line of lines) make("div", "nbl-note", box, line);
      if (code) box.title = code;
    }
  };
  const drawWaiting = () => {  // a sample that hangs can be given up here, too: a key cannot reach the button on its card
    const { index, since } = opened, waited = Date.now() - since;
    make("p", "nbl-note", detail, waited >= SLOW ? `reading for ${Math.floor(waited / 1000)} s` : "reading…");
    if (waited >= SLOW && index !== WHOLE) button(detail, "Give up", `Give up reading sample ${index}`, () => connection.send({ kind: "give_up", index }));
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (opened && !opened.sample) drawDetail(); }, Math.max(TICK, Math.min(1000, SLOW - waited)));
  };
  const drawFailure = (sample) => {
    make("p", "nbx-error", detail, sample.error);
    if (sample.path) make("p", "nbl-note", detail, sample.path);
    if (sample.traceback) make("pre", "nbx-text", detail, sample.traceback);
    if (state.debuggable) {
      const how = make("p", "nbl-note", detail, "To debug this sample: ");
      make("code", "", how, `view.debug(${sample.index}${sample.draw ? `, draw=${sample.draw}` : ""})`);
    }
    button(detail, "Try again", "Read this sample again", () => connection.send({ kind: "retry", indices: [sample.index] }));
  };
  const drawField = (field, media) => {
    const box = make("div", "nbx-field", detail);
    box.style.marginLeft = `${12 * Math.max(0, (field.depth ?? 0) - 1)}px`;
    const line = make("div", "nbx-name", box);
    make("strong", "", line, field.path.split(".").at(-1) || "sample");
    const facts = [field.type, field.shape?.join("×"), field.dtype, field.nbytes ? bytes(field.nbytes) : ""];
    make("span", "nbl-note", line, facts.filter(Boolean).join(" · "));
    drawing.full(box, field, media, (number, name) => {
      open(opened.index, opened.draw, { ...opened.choices, [name ? `${field.path}#${name}` : field.path]: number });
    });
    for (const text of field.figures ?? []) make("div", "nbl-note", box, text);
    if (field.histogram?.length) bars(box, field.histogram, field.range);
    if (field.note) make("div", "nbl-note", box, field.note);
  };

  // ---- messages ----------------------------------------------------------------------------------------------------

  const applyState = (message) => {
    const before = state;
    state = message;
    connection.answered();
    awaited = "";  // a list that cannot be made is a note
    if (!before) {
      cover(message.id, 1);
      wholeBatch.hidden = !message.fixed;
      for (const [name, text] of Object.entries(ORDERS)) {
        if (name === "delivered" && !message.loader) continue;
        if ((message.fixed || message.streaming) && name in PROBLEMS && name !== "failed") continue;
        make("option", "", orders, text).value = name;
      }
    }
    write(title, `${message.title}: ${message.streaming ? "up to " : ""}${whole(message.total)} ${message.total === 1 ? "sample" : "samples"}`);
    go.max = message.total - 1;
    write(notes, message.notes.join(" "));
    problem.replaceChildren();
    if (message.problem) {
      make("strong", "", problem, message.problem.error);
      if (message.problem.traceback) make("pre", "nbx-text", problem, message.problem.traceback);
      button(problem, "Try again", "Read the samples again", () => {
        connection.send({ kind: "retry", indices: [] });
        requestAgain();
      });
    } else if (before?.problem) requestAgain();
    selected = new Set(message.selected);
    showSelection();
    main.hidden = false;
    statistics.node.hidden = message.fixed;
    statistics.applyState(message);
    if (!before) setMode("gallery");
    else layout();
    if (!before && message.opened !== null) reveal(message.opened);
  };
  const receive = (message, buffers) => {
    if (message.kind === "state") applyState(message);
    else if (!state) return;
    else if (message.kind === "cards") take(message, buffers);
    else if (message.kind === "selected") {
      selected = new Set(message.indices);
      showSelection();
    } else if (message.kind === "again") {
      for (const index of message.indices) {
        cards.get(index)?.media.release();
        cards.delete(index);
      }
      if (opened && message.indices.includes(opened.index)) open(opened.index, opened.draw, opened.choices);
      requestAgain();
      askColumns();
      statistics.changed();
    } else if (message.kind === "show") {
      reveal(message.index);
    } else if (message.kind === "order") {
      const view = buffers[0];
      if (message.chosen) arrangement = { ...arrangement, ...message.chosen };
      setOrder(message.name, new Float64Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength)), message.notes, message.groups);
    } else if (message.kind === "columns") {
      showColumns(message);
    } else if (message.kind === "plot") {
      statistics.plot(message.x, message.y);
    } else if (message.kind === "code") {
      write(code, message.text || "# nothing is selected, filtered or sorted");
      code.hidden = false;
      navigator.clipboard?.writeText(message.text).catch(() => {});  // the text can be copied by hand, too
    } else if (message.kind === "stats") {
      statistics.update(message, buffers);
    } else if (message.kind === "scan") {
      statistics.showScan(message.scan);
      if (!message.scan) askColumns();
    } else if (message.kind === "sample" && opened?.index === message.index && opened.draw === message.draw) {
      opened.sample?.media.release();
      opened.sample = { ...message, media: new Media(message.first, buffers) };
      drawDetail();
    } else if (message.kind === "delivered" && opened?.index === message.index) {
      opened.delivered = message;
      drawDetail();
    } else if (message.kind === "draw" && opened?.index === message.index && opened.draws) {
      opened.draws.set(message.delivery?.join(":") ?? message.draw, { ...message, media: new Media(message.first, buffers) });
      drawDetail();
    }
  };
  const orphaned = () => {
    for (const node of root.querySelectorAll("button, input, select")) node.disabled = true;
    clearInterval(ticking);
    clearTimeout(waiting);
    if (!state) write(title, "The kernel is gone.");
    write(status, "The kernel is gone.");
  };

  const keys = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.key === "Tab") return false;
    if (event.key === "Escape" && opened) {
      close();
      return true;
    }
    if (statistics.key(event)) return true;
    if (event.target.nbxKeys?.(event)) {
      event.preventDefault();
      return true;
    }
    if (event.target !== scroller) return true;  // a button or an input: not a shortcut of the notebook
    const page = Math.max(1, Math.floor(deep / high)) * across;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, PageUp: -page, PageDown: page, Home: -Infinity, End: Infinity };
    if (event.key in moves) setCurrent(current + moves[event.key]);
    else if (event.key === "Enter") open(indexAt(current));
    else if (event.key === " ") toggle(indexAt(current));
    else return true;
    event.preventDefault();
    return true;
  };
  scroller.addEventListener("scroll", () => {
    if (scroller.scrollTop === expectedScroll) return;
    expectedScroll = -1;
    top = Math.min(scroller.scrollTop * ratio(), tallest());
    schedule();
  });
  scroller.addEventListener("wheel", (event) => {
    if (ratio() === 1) return;
    event.preventDefault();
    moveTo(top + event.deltaY);
  }, { passive: false });
  layer.addEventListener("click", (event) => {
    const found = [...nodes].find(([, node]) => node.contains(event.target));
    if (!found || event.target.closest("button")) return;
    setCurrent(found[0]);
    if (event.target.closest(".nbx-check") || event.ctrlKey || event.metaKey) toggle(indexAt(found[0]));
    else open(indexAt(found[0]));
  });
  sizes.addEventListener("input", () => keepPlace(() => {}));
  go.addEventListener("change", () => {
    const index = Number(go.value);
    if (go.value === "" || !state || !(index >= 0 && index < state.total)) return;
    if (order) setOrder("all", null);
    setCurrent(index);
    moveTo(Math.floor(index / across) * high);
  });
  for (const select of [sorting, grouping]) select.addEventListener("focus", askColumns);
  sorting.addEventListener("change", () => arrange({ sort: sorting.value }));
  grouping.addEventListener("change", () => arrange({ group: grouping.value }));
  search.addEventListener("change", () => arrange({ words: search.value }));
  search.addEventListener("search", () => { if (search.value !== arrangement.words) arrange({ words: search.value }); });
  orders.addEventListener("change", () => {
    if (orders.value === "all") setOrder("all", null);
    else askList({ kind: "order", name: orders.value });
  });
  const connection = connect({ model, el, root, receive, orphaned, keys, retheme: () => { schedule(); statistics.scatter.draw(); } });
  const resized = new ResizeObserver(() => { if (state && resizes()) resize(); });
  resized.observe(scroller);
  return () => {
    connection.close();
    statistics.close();
    resized.disconnect();
    clearInterval(ticking);
    clearTimeout(pending);
    clearTimeout(waiting);
    for (const card of cards.values()) card.media.release();
    opened?.sample?.media.release();
    if (state) cover(state.id, -1);
  };
}
