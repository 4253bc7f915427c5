// Builds src/ into dist/: declarations by the compiler, JavaScript bundled. A rank loads its code in a few files instead of a
// hundred and fifty, in each of its threads; code that only some scripts need stays in files of its own (`await import`).
import { build } from 'esbuild';
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheBundles } from './cached-bundles.mjs';
import { buildMerged } from './merge-chunks.mjs';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = join(root, 'dist');
const { bin, exports, dependencies, peerDependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

/** Entries that other packages import, and programs: they share their common code, so that a class is one class. */
const programs = Object.values(bin);
const published = Object.values(exports).flatMap((each) => each.default ?? []);
/** The comm thread and its guests, which share their common code, too. */
const hosted = ['comm/thread/comm-entry', 'group/comm/world-guest', 'ps/client/client-node'];
/** Entries that processes and threads of their own are started from: one file each. See `builtEntry`. */
const started = ['ps/server/server-entry', 'ps/job/pulse-thread', 'tools/timing/rank'];
/** Packages that are bundled, as their many small files would cost more than all of ours. */
const bundled = ['uplot', 'commander', 'prom-client', 'tdigest', 'bintrees', '@opentelemetry/api'];

const compiler = join(root, 'node_modules/typescript/bin/tsc');
const { status, error } = spawnSync(process.execPath, [compiler, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
if (error !== undefined) throw error;
if (status !== 0) process.exit(status ?? 1);

const entriesOf = (paths) =>
  Object.fromEntries(
    paths.map((path) => [path.slice('./dist/'.length, -'.js'.length), path.replace(/^\.\/dist\/(.*)\.js$/, './src/$1.ts')]),
  );
const options = {
  absWorkingDir: root,
  outbase: 'src',
  outdir: 'dist',
  bundle: true,
  format: 'esm',
  platform: 'node',
  target: 'node20',
  external: Object.keys({ ...dependencies, ...peerDependencies }).filter((name) => !bundled.includes(name)),
  sourcemap: true,
  // Half the time to load is spent on reading and scanning. Lines stay short enough for stack traces.
  minifyWhitespace: true,
  minifySyntax: true,
  lineLimit: 160,
  // The package has its sources.
  sourcesContent: false,
  legalComments: 'none',
  metafile: true,
  logLevel: 'warning',
};
/** Code by which bundled packages of CommonJS get Node's modules. */
const commonJs = { js: "import{createRequire as requireOf}from'node:module';const require=requireOf(import.meta.url);" };
/** Programs and styles that pages include: one text each. Their packages are not for Node.js. */
const pages = ['chart/page/figures.ts', 'chart/page/style.css', 'report/page/main.ts', 'report/page/style.css'].map(
  (file) => `src/tools/${file}`,
);
const browser = { platform: 'browser', format: 'iife', target: 'es2022', minify: true, sourcemap: false, external: [], inject: [] };
const built = await Promise.all([
  buildMerged(
    { ...options, entryPoints: entriesOf(published), splitting: true, chunkNames: 'shared/[name]-[hash]' },
    {
      roots: ['src/index.ts'],
      apart: ['src/messaging/index.ts', 'src/rendezvous/index.ts'],
      // A rank that has run out of descriptors loads what tells the others so: few files, as they are opened together.
      also: ['src/base/connections/retry.ts'],
    },
  ),
  buildMerged(
    { ...options, banner: commonJs, entryPoints: entriesOf(programs), splitting: true, chunkNames: 'tools/cli/shared/[name]-[hash]' },
    { roots: ['src/tools/cli/main.ts', 'src/tools/cli/run/run-script.ts'] },
  ),
  build({ ...options, ...browser, entryPoints: pages }),
  buildMerged(
    { ...options, entryPoints: hosted.map((entry) => `src/${entry}.ts`), splitting: true, chunkNames: 'comm/shared/[name]-[hash]' },
    { roots: ['src/comm/thread/comm-entry.ts', 'src/group/comm/world-guest.ts'] },
  ),
  // The package that writes metrics as text is bundled here: only processes that have metrics load it.
  build({ ...options, banner: commonJs, entryPoints: ['src/metrics/prometheus.ts'] }),
  ...started.map((entry) => build({ ...options, entryPoints: [`src/${entry}.ts`] })),
]);

const loader = 'dist/base/packages/cached-code.cjs';
const codeOnly = { ...options, splitting: false, format: 'cjs', sourcemap: false, outExtension: { '.js': '.cjs' } };
built.push(await build({ ...codeOnly, entryPoints: ['src/base/packages/cached-code.ts'] }));
const roots = ['src/index.ts', 'src/tools/cli/main.ts', 'src/tools/cli/run/run-script.ts', ...hosted.map((entry) => `src/${entry}.ts`)];
const cut = (await Promise.all(built.map(({ metafile }) => cacheBundles(metafile, { root, roots, loader })))).flat();

const licences = bundled.map((name) => `${name}\n\n${readFileSync(join(root, 'node_modules', name, 'LICENSE'), 'utf8')}`);
writeFileSync(join(dist, 'third-party-licences.txt'), `Parts of these packages are in the files of this folder.\n\n${licences.join('\n')}`);

// A file that no longer has a source would still be importable, so it is removed.
const written = new Set([...built.flatMap(({ metafile }) => Object.keys(metafile.outputs)), ...cut].map((path) => join(root, path)));
for (const name of readdirSync(dist, { recursive: true })) {
  const path = join(dist, name);
  const source = join(root, 'src', name.replace(/\.d\.ts$/, '.ts'));
  const stale = /\.(c?js(\.map)?|cache|part)$/.test(name) ? !written.has(path) : name.endsWith('.d.ts') && !existsSync(source);
  if (stale) rmSync(path);
}

for (const file of programs.map((path) => join(root, path))) {
  writeFileSync(file, `#!/usr/bin/env node\n${readFileSync(file, 'utf8').replace(/^#!.*\n/, '')}`);
  chmodSync(file, 0o755);
}
