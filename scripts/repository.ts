/** The repository's files, for the scripts and tests that check it. */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { PageSources } from './generated-pages.ts';
import type { LayerTable, SourceFile } from './house-rules.ts';

export const repositoryRoot = dirname(dirname(fileURLToPath(import.meta.url)));

const sourceFolders = ['src', 'test', 'scripts', 'bench', 'examples'];

/** Every TypeScript and script file that belongs to the project. */
export function readSources(): SourceFile[] {
  return sourceFolders.flatMap((folder) =>
    readdirSync(join(repositoryRoot, folder), { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.(ts|mjs)$/.test(name) && !name.includes('node_modules'))
      .map((name) => `${folder}/${name}`)
      .sort()
      .map((path) => ({ path, text: readText(path) })),
  );
}

export function readLayerTable(): LayerTable {
  return JSON.parse(readText('layers.json')) as LayerTable;
}

/** A file of the repository as text. */
export function readText(path: string): string {
  return readFileSync(join(repositoryRoot, path), 'utf8');
}

/** Sources of the generated pages. */
export function pageSources(): PageSources {
  const result = (name: string): string | undefined => {
    const path = `bench/results/${name}.json`;
    return existsSync(join(repositoryRoot, path)) ? readText(path) : undefined;
  };
  const nativeInterface = execFileSync(process.execPath, [join(repositoryRoot, 'scripts/native-interface.mjs')], {
    encoding: 'utf8',
  }).trim();
  return { layers: readLayerTable(), result, nativeInterface, read: readText };
}
