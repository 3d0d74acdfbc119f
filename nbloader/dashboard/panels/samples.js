// The slowest and the failed samples. A click opens one in the explorer.

export function create(el, { make, write, button, copy, explore, note, unfolded }) {
  const columns = make("div", "nbl-columns", el);
  const said = make("p", "nbl-said", el);
  said.setAttribute("role", "status");
  const nodes = new Map();  // name of a list -> { list, key }

  const fill = ({ name, title, samples }) => {
    if (!nodes.has(name)) {
      const box = make("div", "", columns);
      nodes.set(name, { head: make("div", "nbl-box-title", box), list: make("ul", "nbl-samples", box), key: null });
    }
    const entry = nodes.get(name);
    write(entry.head, title);
    const key = JSON.stringify(samples);
    if (entry.key === key) return;
    entry.key = key;
    entry.list.replaceChildren();
    if (!samples.length) make("li", "nbl-note", entry.list, "none");
    for (const { index, number, what, where } of samples) {
      const item = make("li", "", entry.list);
      const copyIndex = async () => {
        await copy(index);
        write(said, `Copied: ${index}`);
      };
      const opens = explore && number !== null;
      const label = opens ? `Open sample ${index} in the explorer` : `Copy the index ${index}`;
      const node = button(item, index, label, opens ? () => explore({ index: number }) : copyIndex);
      node.title = label;
      if (opens) button(item, "Copy", `Copy the index ${index}`, copyIndex);
      make("span", "", item, what);
      make("span", "nbl-note", item, where);
    }
  };

  return {
    update({ lists, failures }) {
      const parts = [];
      const slowest = lists.find(({ name }) => name === "slowest")?.samples[0];
      if (slowest) parts.push(`slowest ${slowest.index.slice(0, 24)}: ${slowest.what}`);
      if (failures) parts.push(`▲ ${failures} failed`);
      note(parts.join(" · "), failures > 0);
      if (unfolded()) lists.forEach(fill);
    },
  };
}
