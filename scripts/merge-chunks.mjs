// Merges chunks: bundles that share modules make a file of every combination of sharers, and an entry would load thirty. The
// shared modules that the `roots` load become one file instead, which all roots load, but for the entries `apart`.
import { build } from 'esbuild';
import { join, normalize } from 'node:path';

/** @param options of esbuild, with `splitting`. @param roots sources: entries, or modules that are imported later. @param apart sources. */
export async function buildMerged(options, { roots, apart = [] }) {
  const { metafile } = await build({ ...options, write: false, logLevel: 'silent' });
  const modules = sharedModules(metafile, roots);
  return build({ ...options, plugins: [loadTogether(modules, { root: options.absWorkingDir, apart })] });
}

/** Sources in the files that roots share with other entries. */
function sharedModules({ outputs }, roots) {
  const found = new Set();
  const visit = (path) => {
    if (found.has(path)) return;
    found.add(path);
    for (const { path: next, kind, external } of outputs[path].imports) if (kind === 'import-statement' && !external) visit(next);
  };
  for (const [path, { entryPoint }] of Object.entries(outputs)) if (roots.includes(entryPoint)) visit(path);
  const shared = [...found].filter((path) => outputs[path].entryPoint === undefined);
  return shared.flatMap((path) => Object.keys(outputs[path].inputs));
}

function loadTogether(modules, { root, apart }) {
  const isMember = (kind, path) => kind === 'dynamic-import' || (kind === 'entry-point' && !apart.includes(normalize(path)));
  return {
    name: 'load-together',
    setup(bundle) {
      bundle.onResolve({ filter: /\.ts$/ }, ({ kind, path, resolveDir, namespace }) => {
        if (!isMember(kind, path) || namespace === 'together') return undefined;
        return { path: normalize(join(resolveDir, path)), namespace: 'together' };
      });
      bundle.onResolve({ filter: /^shared:modules$/ }, ({ path }) => ({ path, namespace: 'together' }));
      bundle.onLoad({ filter: /.*/, namespace: 'together' }, ({ path }) => ({
        contents:
          path === 'shared:modules'
            ? modules.map((each) => `import ${JSON.stringify(join(root, each))};`).join('\n')
            : `import 'shared:modules';\nexport * from ${JSON.stringify(path)};`,
        resolveDir: root,
      }));
    },
  };
}
