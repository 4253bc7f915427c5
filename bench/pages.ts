/** Draws results of bench/results as pages with charts, which need no network.
 *
 *    npx tsx bench/pages.ts                           every result that has figures
 *    npx tsx bench/pages.ts peers-one-host-2-ranks    this one
 *    npx tsx bench/pages.ts --out /tmp/pages          elsewhere than build/pages
 *
 *  Build first. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Figure, FigurePage } from '../src/tools/chart/data/figure.ts';
import { figuresPage } from '../src/tools/chart/document.ts';
import { programArguments } from './arguments.ts';
import type { Comparison } from './peers/comparison.ts';
import { comparisonPage } from './peers/page.ts';
import { replayPage, type ReplayReport } from './scheduler/replay.ts';

type Result = Partial<Comparison> & { readonly figures?: readonly Figure[]; readonly bounds?: unknown; readonly simulated?: boolean };

function pageOf(result: Result): FigurePage | undefined {
  if (result.schema === 'shoal-peers') return comparisonPage(result as Comparison);
  if (result.figures !== undefined)
    return { title: result.simulated === true ? 'Simulated' : 'Many workers, simulated', figures: result.figures };
  return result.bounds === undefined ? undefined : replayPage(result as unknown as ReplayReport);
}

const { values, positionals } = programArguments(import.meta.url, {
  allowPositionals: true,
  options: { out: { type: 'string', default: fileURLToPath(new URL('../build/pages', import.meta.url)) } },
});
const results = fileURLToPath(new URL('results', import.meta.url));
const names = readdirSync(results).map((file) => file.replace(/\.json$/, ''));
const unknown = positionals.filter((name) => !names.includes(name));
if (unknown.length > 0) {
  console.error(`no result is called ${unknown.join(', ')}; there are ${names.join(', ')}`);
  process.exit(2);
}
mkdirSync(values.out, { recursive: true });
for (const name of positionals.length === 0 ? names : positionals) {
  const page = pageOf(JSON.parse(readFileSync(join(results, `${name}.json`), 'utf8')) as Result);
  if (page !== undefined) {
    writeFileSync(join(values.out, `${name}.html`), figuresPage(page));
    console.log(join(values.out, `${name}.html`));
  } else if (positionals.length > 0) console.log(`${name} has no figures`);
}
