// Merges chunks: bundles that share modules make a file of every combination of sharers, and an entry would load thirty. The
// shared modules that the `roots` load become one file instead, which all roots load, but for the entries `apart`.
import { build } from 'esbuild';
import { join, normalize, relative } from 'node:path';

/** @param options of esbuild, with `splitting`. @param roots sources: entries, or modules that are imported later. @param apart sources: entries, and modules that are imported later.
 *  @param also sources that would be a file of their own otherwise. */
export async function buildMerged(options, { roots, apart = [], also = [] }) {
  const { metafile } = await build({ ...options, write: false, logLevel: 'silent' });
  const modules = [...sharedModules(metafile, roots), ...also];
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
  const isMember = (kind, path) => ['dynamic-import', 'entry-point'].includes(kind) && !apart.includes(relative(root, path));
  return {
    name: 'load-together',
    setup(bundle) {
      bundle.onResolve({ filter: /\.ts$/ }, ({ kind, path, resolveDir, namespace }) => {
        const file = normalize(join(resolveDir, path));
        return isMember(kind, file) && namespace !== 'together' ? { path: file, namespace: 'together' } : undefined;
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
