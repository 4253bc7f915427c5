/** `npm run docs` writes the generated pages; with `--check` it writes nothing and fails when one is stale. */
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { generatedPages } from './generated-pages.ts';
import { pageSources, readText, repositoryRoot } from './repository.ts';

const checkOnly = process.argv.includes('--check');
const stale = generatedPages(pageSources()).filter(({ path, text }) => {
  return !existsSync(join(repositoryRoot, path)) || readText(path) !== text;
});
for (const { path, text } of stale) {
  if (checkOnly) console.error(`${path} is stale: run npm run docs`);
  else writeFileSync(join(repositoryRoot, path), text);
}
console.log(`generated pages: ${stale.length} ${checkOnly ? 'stale' : 'written'}`);
process.exitCode = checkOnly && stale.length > 0 ? 1 : 0;
