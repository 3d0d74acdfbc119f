// The accelerator: one line for uploads and one for each memory. The panel is hidden where batches stay on the host.

export function create(el, { make, write, note }) {
  const section = el.parentElement;
  const rows = [];

  const draw = ({ label, text, bar }, i) => {
    if (!rows[i]) {
      const node = make("div", "nbl-device-line", el);
      rows[i] = { node, label: make("span", "", node), bar: make("span", "nbl-device-bar", node), text: make("span", "", node) };
    }
    const row = rows[i];
    write(row.label, label);
    write(row.text, text);
    while (row.bar.children.length > bar.length) row.bar.lastChild.remove();
    bar.forEach(([part, share], k) => {
      const piece = row.bar.children[k] ?? make("i", "", row.bar);
      piece.className = `nbl-${part}`;
      piece.style.width = `${share}%`;
    });
  };

  return {
    update({ lines, note: text = "", warn = false }) {
      section.hidden = !lines.length;
      note(`${warn ? "▲ " : ""}${text}`, warn);
      while (rows.length > lines.length) rows.pop().node.remove();
      lines.forEach(draw);
    },
  };
}
