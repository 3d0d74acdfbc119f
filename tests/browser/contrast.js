// Texts below a node whose contrast with their background is below 4.5 (WCAG 2, AA), except those of disabled controls.
(root) => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const parse = (colour) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const gradient = style.backgroundImage.match(/linear-gradient\((rgba?\([^)]*\))/);  // a tint above a color
      if (gradient) layers.push(parse(gradient[1]));
      layers.push(parse(style.backgroundColor));
      if (layers.at(-1)[3] > 0.99) break;
    }
    return layers.reduceRight((below, top) => over(top, below), [255, 255, 255]);
  };
  const low = [], walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || node.closest("style, :disabled, [aria-disabled]") || !node.checkVisibility()) continue;
    const style = getComputedStyle(node), below = background(node);
    const own = over(parse(node instanceof SVGElement ? style.fill : style.color), below);
    const [dark, bright] = [light(own), light(below)].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) low.push(`${text.data.trim()} (${node.className}): ${contrast.toFixed(2)}`);
  }
  return low;
}
