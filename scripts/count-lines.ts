/** Prints the counted lines of production code (scripts/counted-lines.ts), a row per layer with its ceiling in layers.json.
 *
 *    npx tsx scripts/count-lines.ts [--rooms] [--lower]      --rooms: also a row per room; --lower: lowers ceilings to present counts */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { linesByFolder } from './counted-lines.ts';
import { isProduction } from './house-rules.ts';
import { readLayerTable, readSources, repositoryRoot } from './repository.ts';

const lines = linesByFolder(readSources().filter(({ path }) => isProduction(path)));
const linesOf = (folder: string): number => lines.get(`src/${folder}`) ?? 0;
const table = readLayerTable();
for (const { folder, linesMax, rooms = [] } of table.layers) {
  row(`src/${folder}`, linesOf(folder), linesMax);
  if (process.argv.includes('--rooms')) for (const room of rooms) row(`  ${room.folder}`, linesOf(`${folder}/${room.folder}`));
}
row(
  'src',
  lines.get('src') ?? 0,
  table.layers.reduce((sum, { linesMax }) => sum + linesMax, 0),
);
if (process.argv.includes('--lower')) {
  const layers = table.layers.map((layer) => ({ ...layer, linesMax: Math.min(layer.linesMax, linesOf(layer.folder)) }));
  writeFileSync(join(repositoryRoot, 'layers.json'), `${JSON.stringify({ ...table, layers }, null, 2)}\n`);
}

function row(name: string, count: number, ceiling?: number): void {
  console.log(`${String(count).padStart(7)} ${String(ceiling ?? '').padStart(7)}  ${name}`);
}
