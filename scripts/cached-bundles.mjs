// Cuts bundles in two, so that threads find their code compiled: an ES module that imports and exports, and the code as CommonJS, which
// src/base/packages/cached-code.ts runs.
import { build } from 'esbuild';
import { parseSync } from 'oxc-parser';
import { createHash } from 'node:crypto';
import { dirname, join, relative } from 'node:path';
import { writeFileSync } from 'node:fs';

/** Smaller ones cost more by the second file than they save. */
const bytesMin = 20_000;
/** A name that replaces `import`: it has as many characters, so that positions in the source map stay. */
const later = 'later_';

/** @param roots sources: entries whose bundles are cut, with the bundles that these import. @param loader built file of cached-code.ts.
 *  @returns the files that were written beside the bundles. */
export async function cacheBundles({ outputs }, { root, roots, loader }) {
  const found = new Set();
  const visit = (path) => {
    if (found.has(path)) return;
    found.add(path);
    for (const { path: next, kind, external } of outputs[path].imports) if (kind === 'import-statement' && !external) visit(next);
  };
  for (const [path, { entryPoint }] of Object.entries(outputs)) if (roots.some((each) => entryPoint?.endsWith(each))) visit(path);
  const large = [...found].filter((path) => outputs[path].bytes >= bytesMin);
  return Promise.all(large.map((path) => cut(path, outputs[path], { root, loader })));
}

async function cut(path, { imports, exports }, { root, loader }) {
  const bundle = join(root, path);
  const { outputFiles } = await build({
    absWorkingDir: root,
    entryPoints: [path],
    outfile: path,
    write: false,
    format: 'cjs',
    platform: 'node',
    target: 'node20',
    sourcemap: true,
    sourcesContent: false,
    minifyWhitespace: true,
    lineLimit: 160,
    define: { 'import.meta.url': '__bundle' },
    banner: { js: `const __bundle=module.url,${later}=module.importLater;` },
    logLevel: 'warning',
  });
  const [map, code] = ['.map', '.js'].map((ending) => outputFiles.find(({ path: file }) => file.endsWith(ending)).text);
  if (/[^\n\x20-\x7e\t]/.test(code)) throw new Error(`${path} is not ASCII`);
  const body = withoutImports(path, code);
  const hash = createHash('sha256').update(body).digest('hex').slice(0, 16);
  const own = imports
    .filter(({ kind, external }) => kind === 'import-statement' && !external)
    .map(({ path: file }) => relativeTo(path, file));
  const names = exports.map((name, index) => [name, `e${index}`]);
  const stub = [
    `import{createRequire}from"node:module";${own.map((name, index) => `import*as i${index} from"${name}";`).join('')}`,
    `const require=createRequire(import.meta.url),{${names.map(([name, local]) => `${name}:${local}`).join()}}=`,
    `require("${relativeTo(path, loader)}").loadBundle({require,url:import.meta.url,hash:"${hash}",importLater:name=>import(name),`,
    `imports:{${own.map((name, index) => `"${name}":i${index}`).join()}}});`,
    `export{${names.map(([name, local]) => `${local} as ${name}`).join()}};\n`,
  ].join('\n');
  writeFileSync(bundle, stub);
  writeFileSync(`${bundle}.map`, map);
  writeFileSync(bundle.replace(/\.js$/, '.cjs'), body);
  return `${path.replace(/\.js$/, '.cjs')}`;
}

/** Calls of `import` go through the module: positions in the source map stay as they are. */
function withoutImports(path, code) {
  if (code.split(later).length !== 2) throw new Error(`${path} has the name ${later}`);
  const { dynamicImports } = parseSync('bundle.js', `async()=>{${code}}`).module;
  const starts = dynamicImports.map(({ start }) => start - 'async()=>{'.length).sort((a, b) => b - a);
  return starts.reduce((text, start) => text.slice(0, start) + later + text.slice(start + later.length), code);
}

function relativeTo(from, to) {
  const path = relative(dirname(from), to);
  return path.startsWith('.') ? path : `./${path}`;
}
