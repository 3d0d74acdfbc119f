// Annotated objects: over the picture to which they belong, and as a table.

export function draw(el, field, { make, picture }) {
  make("div", "", el, field.summary);
  picture(el, field.picture);
  if (!field.data?.rows?.length) return;
  const table = make("table", "nbx-objects", make("div", "nbx-wide", el));
  const head = make("tr", "", make("thead", "", table));
  for (const name of field.data.columns) make("th", "", head, name).scope = "col";
  const body = make("tbody", "", table);
  for (const cells of field.data.rows) {
    const row = make("tr", "", body);
    for (const text of cells) make("td", "", row, text);
  }
}
