import { execFileSync, spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../scripts/repository.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { builtEntry } from '../../src/base/packages/package-root.ts';

const importPattern = /(?<=^|[;}])(?:import|export)(?:[^;"'`()]*from)?"([^"]+)"/gm;

function importsOf(file: string): string[] {
  return [...readFileSync(file, 'utf8').matchAll(importPattern)].map(([, name]) => name);
}

/** The files that are loaded with `entry`, before anything is imported later. */
function filesOf(entry: string, found: Set<string> = new Set()): Set<string> {
  if (found.has(entry)) return found;
  found.add(entry);
  for (const path of importsOf(entry)) if (path.startsWith('.')) filesOf(join(dirname(entry), path), found);
  return found;
}

/** The sources from which these files were built. */
function sourcesOf(files: Iterable<string>): string[] {
  return [...files].flatMap((file) => {
    const { sources } = JSON.parse(readFileSync(`${file}.map`, 'utf8')) as { sources: string[] };
    return sources.map((source) => relative(repositoryRoot, join(dirname(file), source)));
  });
}

/** Names of packages in the import statements of these files. */
function packagesOf(files: Iterable<string>): string[] {
  const names = [...files].flatMap(importsOf);
  return [...new Set(names)].filter((name) => !name.startsWith('node:') && !name.startsWith('.'));
}

function evaluate(code: string, flags: readonly string[] = []): string {
  return execFileSync(process.execPath, [...flags, '--input-type=module', '-e', code], { encoding: 'utf8' }).trim();
}

const url = (entry: string): string => JSON.stringify(pathToFileURL(builtEntry(entry)).href);

describe('the packed package', () => {
  it('has no scripts, and packing leaves the repository as it was', () => {
    const folder = temporaryFolder('packed');
    const whole = readFileSync(join(repositoryRoot, 'package.json'), 'utf8');
    const { scripts, ...manifest } = JSON.parse(whole) as { scripts: Record<string, string> };
    // The addon and the pages are made elsewhere: other tests look at the same files.
    const [, prepack] = scripts.prepack.split('api-reference.ts && ');
    const text = `${JSON.stringify({ ...manifest, scripts: { ...scripts, prepack } }, null, 2)}\n`;
    writeFileSync(join(folder, 'package.json'), text);
    execFileSync('npm', ['pack'], { cwd: folder, stdio: 'ignore' });
    expect(readFileSync(join(folder, 'package.json'), 'utf8')).toBe(text);
    const packed = execFileSync('tar', ['-xzOf', 'shoal-0.1.0.tgz', 'package/package.json'], { cwd: folder, encoding: 'utf8' });
    const { devDependencies: _, ...published } = manifest as { devDependencies?: object };
    expect(JSON.parse(packed)).toEqual(published);
  });
});

describe('the declarations', () => {
  /** Entries for a framework, which their users have installed. */
  const frameworks: Readonly<Record<string, string>> = {
    './ddp/jax-js': '@jax-js/jax',
    './ddp/tfjs': '@tensorflow/tfjs',
    './graph/tfjs': '@tensorflow/tfjs',
  };

  it('compile with skipLibCheck off and no optional package, but those for a framework need that one', () => {
    const folder = temporaryFolder('declarations');
    const modules = join(folder, 'node_modules');
    mkdirSync(join(modules, 'shoal'), { recursive: true });
    // A copy: the compiler follows links to where other packages are.
    cpSync(join(repositoryRoot, 'dist'), join(modules, 'shoal/dist'), {
      recursive: true,
      filter: (path) => statSync(path).isDirectory() || path.endsWith('.d.ts'),
    });
    for (const name of ['@types/node', 'undici-types'])
      cpSync(join(repositoryRoot, 'node_modules', name), join(modules, name), { recursive: true });
    const manifest = readFileSync(join(repositoryRoot, 'package.json'), 'utf8');
    writeFileSync(join(modules, 'shoal/package.json'), manifest);
    const { exports } = JSON.parse(manifest) as { exports: Record<string, unknown> };
    const entries = Object.keys(exports).filter((entry) => !entry.endsWith('.json'));
    const imports = entries.map((entry, index) => `export * as entry${index} from '${entry.replace('.', 'shoal')}';`);
    writeFileSync(join(folder, 'main.ts'), imports.join('\n'));
    const options = { module: 'nodenext', target: 'es2023', strict: true, noEmit: true, skipLibCheck: false, types: ['node'] };
    writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
    writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions: options, files: ['main.ts'] }));
    const tsc = join(repositoryRoot, 'node_modules/typescript/bin/tsc');
    const { stdout } = spawnSync(process.execPath, [tsc, '--pretty', 'false', '-p', folder], { encoding: 'utf8' });
    const errors = stdout.trim().split('\n');
    const missing = errors.map((line) => /error TS2307: Cannot find module '([^']+)'/.exec(line)?.[1] ?? line);
    expect(new Set(missing)).toEqual(new Set(Object.values(frameworks)));
    expect(entries).toEqual(expect.arrayContaining(Object.keys(frameworks)));
    // Nothing that other entries need is among the files with these errors.
    expect(errors.filter((line) => !/^[^(]*shoal\/dist\/(?:ddp\/adapters|graph\/kernels\/tensorflow)/.test(line))).toEqual([]);
  });
});

describe('the built code', () => {
  it('is loaded in a few files by each thread of a rank, without other packages', () => {
    const main = filesOf(builtEntry('index.js'));
    const comm = new Set(['comm/thread/comm-entry.js', 'group/comm/world-guest.js'].flatMap((entry) => [...filesOf(builtEntry(entry))]));
    expect(main.size).toBeLessThan(8);
    expect(comm.size).toBeLessThan(6);
    expect(packagesOf([...main, ...comm])).toEqual([]);
  });

  it('is one in the comm thread: its guests share their common code', () => {
    const [world, client] = ['group/comm/world-guest.js', 'ps/client/client-node.js'].map((entry) => filesOf(builtEntry(entry)));
    const common = new Set([...world].filter((file) => client.has(file)));
    for (const source of ['src/base/errors.ts', 'src/memory/native.ts', 'src/memory/kernels/create-kernels.ts']) {
      expect(sourcesOf(common)).toContain(source);
      for (const each of [world, client]) expect(sourcesOf([...each].filter((file) => !common.has(file)))).not.toContain(source);
    }
  });

  it('keeps the comm thread, and code that only some scripts need, out of the main thread', () => {
    const sources = sourcesOf(filesOf(builtEntry('index.js')));
    expect(sources).toContain('src/group/api/process-group.ts');
    for (const absent of [
      'group-engine.ts',
      'providers/shm.ts',
      'zod',
      'tuning-format.ts',
      'src/kvstore/',
      'src/ps/',
      'src/launch/',
      'store-client',
    ])
      expect(sources.filter((source) => source.includes(absent))).toEqual([]);
  });

  it('is one package: its entries share their classes', () => {
    const entries = ['index.js', 'kvstore/index.js', 'messaging/index.js', 'ddp/index.js'];
    const code = `
      const [root, kvstore, messaging] = await Promise.all([${entries.map((entry) => `import(${url(entry)})`).join()}]);
      const thrown = [() => kvstore.create('local', { nonsense: 1 }), () => new messaging.MessagingContext({ nonsense: 1 })].map((call) => {
        try { return call(); } catch (error) { return error; }
      });
      const errors = await Promise.all(thrown.map((each) => Promise.resolve(each).catch((error) => error)));
      console.log(errors.map((error) => error instanceof root.ShoalError || String(error)).join());`;
    expect(evaluate(code)).toBe('true,true');
  });

  it('names its sources in stack traces', () => {
    const code = `import { initProcessGroup } from ${url('index.js')}; await initProcessGroup({ nonsense: 1 });`;
    const { stderr } = spawnSync(process.execPath, ['--enable-source-maps', '--input-type=module', '-e', code], { encoding: 'utf8' });
    const [, path, line] = /at .*initProcessGroup .*?(\/src\/group\/[\w/-]*init\.ts):(\d+)/.exec(stderr) ?? [];
    expect(path, stderr).toBeDefined();
    expect(Number(line)).toBeGreaterThan(0);
  });
});
