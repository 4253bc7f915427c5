/** Finds faults of a page as a browser shows it, whatever its fonts: texts that are cut off, lie over each other or are too
 *  faint, and labels of canvases that leave them. Both programs are run in the page, as text. */

/** Runs before the page's own program: keeps the texts that are written on canvases, until they are cleared. */
export const watchCanvases = `
  globalThis.canvasTexts = new Map();
  const { fillText, clearRect } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
    const { width, actualBoundingBoxAscent: up, actualBoundingBoxDescent: down, actualBoundingBoxLeft: left, actualBoundingBoxRight: right } =
      this.measureText(text);
    const matrix = this.getTransform();
    const corners = [[x - left, y - up], [x + right, y + down]].map(([a, b]) => matrix.transformPoint(new DOMPoint(a, b)));
    const xs = corners.map((p) => p.x), ys = corners.map((p) => p.y);
    const box = { text, left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
    const all = canvasTexts.get(this.canvas) ?? [];
    if (String(text).trim() !== '') canvasTexts.set(this.canvas, [...all, box]);
    return fillText.call(this, text, x, y, ...rest);
  };
  CanvasRenderingContext2D.prototype.clearRect = function (...box) {
    canvasTexts.delete(this.canvas);
    return clearRect.apply(this, box);
  };
  for (const side of ['width', 'height']) {
    const property = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, side);
    Object.defineProperty(HTMLCanvasElement.prototype, side, {
      ...property,
      set(value) { canvasTexts.delete(this); property.set.call(this, value); },
    });
  }`;

/** Returns a list of sentences, one per fault. */
export const findFaults = `(() => {
  const faults = [];
  const slack = 1.5;
  const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > slack;
  const apart = (texts, where) => {
    const sorted = texts.toSorted((a, b) => a.top - b.top);
    sorted.forEach((a, at) => {
      for (let next = at + 1; next < sorted.length && sorted[next].top < a.bottom; next++)
        if (overlap(a, sorted[next])) faults.push(where + ': "' + a.text + '" lies over "' + sorted[next].text + '"');
    });
  };
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) faults.push('the page is wider than its window: ' + root.scrollWidth);

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (node.textContent.trim() === '' || parent.closest('script, style, title, [hidden]')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width < 1) continue;
      const text = node.textContent.trim().slice(0, 40);
      texts.push({ text, parent, left: box.left, right: box.right, top: box.top + box.height * 0.15, bottom: box.bottom - box.height * 0.15 });
      const frame = parent.closest('svg') ?? parent.closest('.scroll')?.firstElementChild ?? root;
      const { left, right } = frame.getBoundingClientRect();
      if (box.left < left - slack || box.right > right + slack) faults.push('"' + text + '" is cut off');
    }
    if (parent.scrollWidth > parent.clientWidth + 1 && getComputedStyle(parent).overflowX === 'hidden') faults.push('"' + node.textContent.trim() + '" is cut off by its box');
  }
  apart(texts, 'texts');

  for (const group of document.querySelectorAll('svg g')) {
    const [box, text] = [group.querySelector(':scope > rect'), group.querySelector(':scope > text')].map((each) => each?.getBoundingClientRect());
    if (box && text && text.right > box.right + slack) faults.push('"' + group.querySelector('text').textContent + '" leaves its box');
  }

  for (const [canvas, all] of canvasTexts) {
    for (const { text, left, right, top, bottom } of all)
      if (left < -slack || top < -slack || right > canvas.width + slack || bottom > canvas.height + slack) faults.push('label "' + text + '" leaves its canvas');
    apart(all, 'labels');
  }

  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const backgroundOf = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(each).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  for (const parent of new Set(texts.map((each) => each.parent))) {
    if (parent.closest('.heat')) continue;
    const style = getComputedStyle(parent);
    const [a, b] = [luminance(channels(parent.closest('svg') ? style.fill : style.color)), luminance(backgroundOf(parent))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faults.push('"' + parent.textContent.trim().slice(0, 40) + '" has a contrast of ' + contrast.toFixed(1));
  }
  return faults.slice(0, 20);
})()`;

/** A picture as a few thousand numbers: brightness of squares, from 0 to 255. @param url of an image, as data. */
export const squaresOf = (url: string): string => `(async () => {
  const image = new Image();
  image.src = ${JSON.stringify(url)};
  await image.decode();
  const canvas = new OffscreenCanvas(48, 48);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, 48, 48);
  const { data } = context.getImageData(0, 0, 48, 48);
  return Array.from({ length: 48 * 48 }, (_, at) => [0, 1, 2].map((channel) => data[4 * at + channel]));
})()`;
