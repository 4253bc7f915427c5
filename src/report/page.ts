/** One HTML file that works offline: the data as JSON, the program that draws it, and a content security policy that lets nothing else
 *  run or load. Texts of traces and records never become markup: the program writes them as text. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { builtEntry } from '../base/packages/package-root.ts';
import type { ReportData } from './data/report-data.ts';

/** @throws ShoalError `config` when the package is not built. */
export function reportPage(data: ReportData): string {
  const program = readFileSync(builtEntry('report/page/main.js'), 'utf8');
  const style = readFileSync(builtEntry('report/page/style.css'), 'utf8');
  const policy = `default-src 'none'; script-src '${hashOf(program)}'; style-src '${hashOf(style)}'`;
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>${escapeMarkup(data.title)}</title>`,
    `<style>${style}</style></head>`,
    '<body><main id="report"></main>',
    `<script type="application/json" id="data">${JSON.stringify(data).replaceAll('<', '\\u003c')}</script>`,
    `<script>${program}</script>`,
    '</body></html>\n',
  ].join('\n');
}

function hashOf(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}

function escapeMarkup(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;');
}
