/** The benchmark of the start in its smallest form: every contestant starts and ends well. And what a rank loads while it starts. */
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { expect, it } from 'vitest';
import { benchStart, contestants, rankBytes } from '../bench/start/run.ts';
import { repositoryRoot } from '../scripts/repository.ts';

it('every contestant starts and ends', { timeout: 120_000 }, () => {
  const rows = benchStart(contestants(2), 1);
  expect(rows.length).toBeGreaterThanOrEqual(4);
  expect(rows[0].ratio).toBe(1);
  for (const { medianMs } of rows) expect(medianMs).toBeGreaterThan(0);
  expect(rankBytes(2)).toBeGreaterThan(2 ** 20);
});

/** Built files that an entry loads before anything of them runs. */
function closureOf(entry: string): string[] {
  const found = new Set<string>();
  const visit = (path: string): void => {
    if (found.has(path)) return;
    found.add(path);
    for (const [, name] of readFileSync(path, 'utf8').matchAll(/^(?:import|export)[^'"]*["'](\.[^'"]+)["'];$/gm))
      visit(join(dirname(path), name));
  };
  visit(join(repositoryRoot, 'dist', entry));
  return [...found];
}

it.each(['index.js', 'comm/comm-entry.js', 'group/thread/world-guest.js'])('%s loads neither schemas nor packages', (entry) => {
  const files = closureOf(entry);
  expect(files.length).toBeGreaterThan(1);
  for (const file of files) {
    const source = readFileSync(file, 'utf8');
    expect(source, file).not.toMatch(/node_modules\/zod/);
    expect(source, file).not.toMatch(/^import [^;]* from "(?!node:|\.)/m);
  }
});
