/** Parts of pictures: SVG that stands by itself, in the colours of all pages, light and dark. */
import { paletteStyle } from './data/palette.ts';

/** Style of every picture. A kind of box or line has the same colour everywhere. */
export const pictureStyle = [
  paletteStyle('svg.picture'),
  'svg.picture{background:var(--page);font:11px system-ui,sans-serif}',
  'svg.picture text{fill:var(--text)}svg.picture .title{font-size:13px;font-weight:600}svg.picture .faint{fill:var(--faint)}',
  'svg.picture .band{fill:var(--panel)}svg.picture .grid{stroke:var(--line)}',
  'svg.picture .put{fill:var(--work)}svg.picture .signal{fill:var(--mark)}svg.picture .wait{fill:var(--wait);fill-opacity:.5}',
  'svg.picture .reduce{fill:var(--reduce)}svg.picture .copy{fill:var(--copy)}svg.picture .flush{fill:var(--other)}',
  'svg.picture .message{stroke:var(--work);stroke-opacity:.35}',
  'svg.picture .box{stroke:var(--other)}svg.picture .kernel{fill:var(--panel)}svg.picture .send{fill:var(--work);fill-opacity:.3}',
  'svg.picture .recv{fill:var(--wait);fill-opacity:.35}svg.picture .fuse-recv{fill:var(--wait);fill-opacity:.8}',
  'svg.picture .control{fill:var(--mark);fill-opacity:.25}svg.picture .scope{fill:var(--reduce);fill-opacity:.3}',
  'svg.picture .edge{fill:none;stroke:var(--other)}svg.picture .edge.transfer{stroke:var(--series-1);stroke-dasharray:4 3}',
  'svg.picture .edge.order{stroke-dasharray:1 3}',
].join('');

export interface Size {
  readonly width: number;
  readonly height: number;
}

/** The whole picture. */
export function picture(about: string, { width, height }: Size, parts: readonly string[]): string {
  const box = `width="${Math.ceil(width)}" height="${Math.ceil(height)}" viewBox="0 0 ${Math.ceil(width)} ${Math.ceil(height)}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" class="picture" ${box} role="img" aria-label="${escapeMarkup(about)}"><style>${pictureStyle}</style>\n${parts.join('\n')}\n</svg>\n`;
}

export interface Place {
  readonly x: number;
  readonly y: number;
  readonly kind?: 'title' | 'faint';
  /** The point of the text that is at `x`. Default: its start. */
  readonly anchor?: 'start' | 'middle' | 'end';
}

export function pictureText({ x, y, kind, anchor }: Place, content: string): string {
  const style = `${kind === undefined ? '' : ` class="${kind}"`}${anchor === undefined ? '' : ` text-anchor="${anchor}"`}`;
  return `<text x="${fixed(x)}" y="${fixed(y)}"${style}>${escapeMarkup(content)}</text>`;
}

/** Greatest width of a letter of a picture's text. */
export const letterWidth = 7.2;

/** A legend in a line: classes of `pictureStyle`, and words. */
export function pictureLegend({ x, y }: Place, entries: readonly (readonly [kind: string, words: string])[]): string[] {
  let at = x;
  return entries.flatMap(([kind, words]) => {
    const left = at;
    at += 16 + words.length * letterWidth + 14;
    return [`<rect x="${fixed(left)}" y="${y - 9}" width="12" height="10" class="${kind}"/>`, pictureText({ x: left + 16, y }, words)];
  });
}

/** The label without its beginning, if it is too long: the end of a name says more. */
export function shortened(label: string, width: number): string {
  const letters = Math.max(2, Math.floor(width / letterWidth));
  return label.length > letters ? `…${label.slice(1 - letters)}` : label;
}

export function escapeMarkup(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
}

export function fixed(value: number): string {
  return value.toFixed(1);
}
