/** `npm run docs:api`, and packing: writes docs/api, a page for each entry of the package, from the docstrings, by typedoc. Then lists
 *  the public names without a docstring, and fails when there are any.
 *
 *  typedoc needs a TypeScript of the generation before the project's: it and its own are fetched into node_modules/.cache, in the versions
 *  named here, and read the declarations in dist. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readText, repositoryRoot } from './repository.ts';

const tools = ['typedoc@0.28.20', 'typedoc-plugin-markdown@4.14.1', 'typescript@5.9.3'];
const target = join(repositoryRoot, 'docs/api');

const { exports } = JSON.parse(readText('package.json')) as { exports: Record<string, string | { types: string }> };
const entries = Object.entries(exports).flatMap(([name, entry]) =>
  typeof entry === 'string' ? [] : [{ name: `shoal${name.slice(1)}`, path: join(repositoryRoot, entry.types.replace('.d.ts', '.js')) }],
);
const fileOf = (name: string): string => name.replaceAll('/', '-');

const cache = join(repositoryRoot, 'node_modules/.cache', `api-${tools.join('-').replace(/[^\w.]+/g, '-')}`);
if (!existsSync(join(cache, 'node_modules/typedoc'))) {
  mkdirSync(cache, { recursive: true });
  const flags = ['--prefix', cache, '--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts'];
  execFileSync('npm', ['install', ...flags, ...tools], { stdio: ['ignore', 'ignore', 'inherit'] });
}

// The folder is in the repository: typedoc tells our own declarations from those of other packages by their place.
const folder = join(repositoryRoot, 'build/api-reference');
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
try {
  const said = generate(folder);
  const pages = pagesOf(folder);
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  for (const [name, text] of pages) writeFileSync(join(target, name), text);
  console.log(`docs/api: ${pages.size} pages`);
  const bare = [...said.matchAll(/(\S+ \(\w+\)), defined in (\S+), does not have any documentation/g)];
  for (const [, what, where] of bare) console.log(`no docstring: ${what} in ${where.replace(/^.*dist\//, '')}`);
  console.log(`${bare.length} public names without a docstring`);
  if (bare.length > 0) process.exitCode = 1;
} finally {
  rmSync(folder, { recursive: true });
}

/** Runs typedoc and returns its output. */
function generate(out: string): string {
  // Entry points have the names that are imported; a file's own comment is not that of its first declaration.
  const entryPoints = entries.map(({ name, path }) => {
    const file = join(out, `${fileOf(name)}.ts`);
    writeFileSync(file, `/** @module */\nexport * from ${JSON.stringify(path)};\n`);
    return file;
  });
  const program = join(cache, 'node_modules/typedoc/bin/typedoc');
  const settings = {
    name: 'shoal',
    plugin: [join(cache, 'node_modules/typedoc-plugin-markdown/dist/index.js')],
    entryPoints,
    out,
    readme: 'none',
    disableSources: true,
    hideGenerator: true,
    excludePrivate: true,
    excludeExternals: true,
    skipErrorChecking: true,
    validation: { notDocumented: true, notExported: false, invalidLink: false },
    requiredToBeDocumented: ['Class', 'Interface', 'Function', 'TypeAlias', 'Property', 'Method', 'Accessor', 'Variable'],
    outputFileStrategy: 'modules',
    entryFileName: 'README',
    hidePageHeader: true,
    hideBreadcrumbs: true,
    useCodeBlocks: true,
    parametersFormat: 'list',
    interfacePropertiesFormat: 'list',
    sort: ['source-order'],
    groupOrder: ['Functions', 'Classes', 'Interfaces', 'Type Aliases', 'Variables'],
    tsconfig: join(out, 'tsconfig.json'),
  };
  const options = join(out, 'typedoc.json');
  writeFileSync(options, JSON.stringify(settings));
  const compilerOptions = {
    target: 'es2023',
    lib: ['es2023', 'esnext.disposable'],
    module: 'nodenext',
    types: ['node'],
    typeRoots: [join(repositoryRoot, 'node_modules/@types')],
    strict: true,
    skipLibCheck: true,
    noEmit: true,
  };
  writeFileSync(settings.tsconfig, JSON.stringify({ compilerOptions, files: entryPoints }));
  const { status, stdout, stderr } = spawnSync(process.execPath, [program, '--options', options, '--cleanOutputDir', 'false'], {
    cwd: repositoryRoot,
    encoding: 'utf8',
    env: { ...process.env, NO_COLOR: '1' },
    maxBuffer: 64 * 1024 * 1024,
  });
  if (status !== 0) throw new Error(`typedoc ended with ${status}:\n${stdout}${stderr}`);
  return stdout + stderr;
}

/** Pages by file name. Headings and links are by import name. */
function pagesOf(where: string): Map<string, string> {
  const names = readdirSync(where)
    .filter((name) => name.endsWith('.md'))
    .sort();
  const heading = (text: string): string =>
    entries.reduce(
      (all, { name }) =>
        all.replace(`# ${fileOf(name)}\n`, `# ${name}\n`).replace(`[${fileOf(name)}](${fileOf(name)}.md)`, `[${name}](${fileOf(name)}.md)`),
      text,
    );
  return new Map(names.map((name) => [name, heading(readFileSync(join(where, name), 'utf8'))]));
}
