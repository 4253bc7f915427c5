/** Writes the pages of bench/results anew from their numbers, after the way in which pages are drawn has changed. Build first.
 *
 *    npx tsx bench/pages.ts */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import { figuresPage } from '../src/chart/document.ts';
import type { Figure, FigurePage } from '../src/chart/data/figure.ts';
import { programArguments } from './arguments.ts';
import type { Comparison } from './peers/comparison.ts';
import { comparisonPage } from './peers/page.ts';
import { replayPage, type ReplayReport } from './scheduler/replay.ts';

type Result = Partial<Comparison> & { readonly figures?: readonly Figure[]; readonly best?: unknown; readonly simulated?: boolean };

function pageOf(result: Result): FigurePage | undefined {
  if (result.schema === 'shoal-peers') return comparisonPage(result as Comparison);
  if (result.figures !== undefined)
    return { title: result.simulated === true ? 'Simulated' : 'Many workers, simulated', figures: result.figures };
  return result.best === undefined ? undefined : replayPage(result as unknown as ReplayReport);
}

programArguments(import.meta.url, { options: {} });
const folder = fileURLToPath(new URL('results', import.meta.url));
for (const name of readdirSync(folder).filter((each) => each.endsWith('.json'))) {
  const html = join(folder, name.replace(/json$/, 'html'));
  if (!existsSync(html)) continue;
  const page = pageOf(JSON.parse(readFileSync(join(folder, name), 'utf8')) as Result);
  if (page === undefined) console.log(`${name} has no figures: run what makes it`);
  else writeFileSync(html, figuresPage(page));
}
