/** Programs of test/fixtures and of examples, bundled once per run of the suite: a loader of TypeScript costs every process more than
 *  the rest of its start. Their imports from src/ are the built code, as for users of the package. */
import { build, type Plugin } from 'esbuild';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { repositoryRoot } from '../../scripts/repository.ts';

/** Folder of the bundles: in the package, which knows itself by name, and not a folder that anything else cleans. */
const built = join(repositoryRoot, '.built');

/** With `SOURCE_MAPS=1`, places in the output of `fixtureCommand` are those of sources: for whoever looks at a failure, as it costs each
 *  process a tenth of its start. */
const withMaps = process.env.SOURCE_MAPS === '1';

/** The script of a fixture: its name in test/fixtures, without extension. */
export function fixtureScript(name: string): string {
  return join(built, `${name}.mjs`);
}

/** The command that runs a fixture. */
export function fixtureCommand(name: string): [string, ...string[]] {
  return [process.execPath, ...(withMaps ? ['--enable-source-maps'] : []), fixtureScript(name)];
}

/** The script by which an example trains, for all runs of it but one: that one starts its TypeScript, as users do. */
export function exampleScript(name: string): string {
  return join(built, 'examples', `${name}.mjs`);
}

/** Takes entries of the package from dist/; other files of src/ become part of the bundle. */
const fromDist: Plugin = {
  name: 'from dist',
  setup({ onResolve }) {
    onResolve({ filter: /^\.\.?\// }, ({ path, resolveDir }) => {
      const source = relative(join(repositoryRoot, 'src'), resolve(resolveDir, path));
      const target = join(repositoryRoot, 'dist', source.replace(/\.ts$/, '.js'));
      if (source.startsWith('..') || !existsSync(target)) return undefined;
      return { path: relative(built, target), external: true };
    });
  },
};

/** vitest's hook before the first test. */
export default async function setup(): Promise<void> {
  const inFolder = (folder: string): string[] => readdirSync(join(repositoryRoot, folder)).map((name) => `${folder}/${name}`);
  const fixtures = inFolder('test/fixtures').filter((path) => path.endsWith('.ts'));
  const examples = inFolder('examples').filter((path) => existsSync(join(repositoryRoot, path, 'train.ts')));
  const { outputFiles } = await build({
    entryPoints: [
      ...fixtures.map((path) => ({ in: path, out: basename(path, '.ts') })),
      ...examples.map((path) => ({ in: `${path}/train.ts`, out: path })),
    ],
    absWorkingDir: repositoryRoot,
    outdir: built,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    packages: 'external',
    sourcemap: withMaps && 'inline',
    plugins: [fromDist],
    write: false,
    logLevel: 'warning',
  });
  for (const { path, contents } of outputFiles) {
    if (existsSync(path) && readFileSync(path).equals(contents)) continue;
    // The file is replaced in one step: other runs of this repository may be starting it.
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(`${path}.${process.pid}`, contents);
    renameSync(`${path}.${process.pid}`, path);
  }
}
