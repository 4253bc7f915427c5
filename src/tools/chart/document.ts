/** Makes HTML files that work offline: data as JSON, the program that draws it, and a content security policy that lets nothing
 *  else run or load. Texts of the data never become markup: programs write them as text. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { builtEntry } from '../../base/packages/package-root.ts';
import type { FigurePage } from './data/figure.ts';
import { paletteStyle } from './data/palette.ts';
import { escapeMarkup, pictureStyle } from './picture.ts';

export interface DrawnDocument {
  readonly title: string;
  /** Path of the built program: `tools/report/page/main.js`. */
  readonly program: string;
  readonly style: string;
  readonly data: unknown;
  /** True for a page that is served, and may ask its server for more. Default: it is a file. */
  readonly live?: boolean;
}

/** @throws ShoalError `config` when the package is not built. */
export function drawnDocument({ title, program, style, data, live = false }: DrawnDocument): string {
  const script = readFileSync(builtEntry(program), 'utf8');
  const body = [
    `<main id="page"${live ? ' data-live' : ''}></main>`,
    `<script type="application/json" id="data">${JSON.stringify(data).replaceAll('<', '\\u003c')}</script>`,
    `<script>${script}</script>`,
  ];
  return htmlDocument({ title, style: styleOf(style), scripts: [script], body: body.join('\n'), live });
}

/** A page of curves and tables. @throws ShoalError `config` when the package is not built. */
export function figuresPage(page: FigurePage): string {
  return drawnDocument({ title: page.title, program: 'tools/chart/page/figures.js', style: 'tools/chart/page/style.css', data: page });
}

export interface TitledPicture {
  readonly title?: string;
  /** The picture, made by `picture`. */
  readonly svg: string;
}

/** A page of pictures below each other, each of which can be scrolled. @throws ShoalError `config` when the package is not built. */
export function picturesPage(title: string, pictures: readonly TitledPicture[]): string {
  const parts = pictures.map(
    ({ title: heading, svg }) =>
      `<section>${heading === undefined ? '' : `<h2>${escapeMarkup(heading)}</h2>`}<div class="scroll" tabindex="0">${svg}</div></section>`,
  );
  const body = `<main class="wide"><h1>${escapeMarkup(title)}</h1>\n${parts.join('\n')}</main>`;
  return htmlDocument({ title, style: styleOf('tools/chart/page/style.css'), scripts: [], body });
}

function styleOf(file: string): string {
  return `${paletteStyle(':root')}${readFileSync(builtEntry(file), 'utf8')}`;
}

interface HtmlDocument extends Pick<DrawnDocument, 'title' | 'style' | 'live'> {
  readonly scripts: readonly string[];
  readonly body: string;
}

function htmlDocument({ title, style, scripts, body, live = false }: HtmlDocument): string {
  const scriptSources = scripts.length === 0 ? "'none'" : scripts.map(hashOf).join(' ');
  const policy = `default-src 'none'; script-src ${scriptSources}; style-src ${hashOf(style)} ${hashOf(pictureStyle)}${live ? "; connect-src 'self'" : ''}`;
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>${escapeMarkup(title)}</title>`,
    `<style>${style}</style></head>`,
    `<body>${body}`,
    '</body></html>\n',
  ].join('\n');
}

function hashOf(text: string): string {
  return `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
}
