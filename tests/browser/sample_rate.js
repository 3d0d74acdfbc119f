// The browser's half of the example panel in sample_rate.py.
//
// `create` is called once per view. `el` is an empty element below the heading. `update` gets what payload() returned.
// nbloader/dashboard/core.js lists what else `api` offers.

export function create(el, { make, write, note, command, button }) {
  const now = make("div", "nbl-value", el);
  const epochs = make("ul", "nbl-samples", el);
  button(el, "Pause", "Pause from the example", () => command("pause"));
  return {
    update(data) {
      write(now, `${data.now} samples/s`);
      note(`${data.epochs.length} ended`);
      epochs.replaceChildren();
      for (const text of data.epochs) make("li", "", epochs, text);
    },
  };
}
