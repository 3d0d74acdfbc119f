// Token ids: the text, and each token with its number.

export function words(el, field, { make }) {
  make("div", "nbx-words", el, field.text || field.summary);
}

export function draw(el, field, { make }) {
  make("pre", "nbx-text", el, field.text || field.summary);
  if (!field.data?.tokens) return;
  const box = make("div", "nbx-tokens", el);
  for (const [number, text] of field.data.tokens) {
    const token = make("span", number < 0 ? "nbx-ignored" : "", box, text.replaceAll("\n", "↵") || String(number));
    token.title = String(number);
  }
}
