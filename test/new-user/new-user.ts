/** The steps of a new user with the packed package, from a clean root: installs it, uses it from TypeScript, ES modules and CommonJS,
 *  follows the tutorial, breaks the script, and looks for the cause. Each step throws when it does not go as the pages say. */
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repositoryRoot } from '../../scripts/repository.ts';
import { breakages, brokenScript } from './breakages.ts';
import { CleanRoot, succeeded } from './clean-root.ts';
import type { Manager } from './managers.ts';
import { tutorialSteps, type TutorialStep } from './tutorial.ts';

export interface NewUserOptions {
  readonly tarball: string;
  readonly manager: Manager;
  /** Node.js to use; default: this one. */
  readonly node?: string;
  /** Sections of the tutorial to follow. */
  readonly tutorial: (section: string) => boolean;
  /** True for the breakages to try, by name. */
  readonly breaks: (breakage: string) => boolean;
  readonly log: (line: string) => void;
}

export interface NewUserResult {
  readonly manager: string;
  readonly node: string;
  readonly installSeconds: number;
  readonly packages: number;
  readonly bytes: number;
  readonly tutorial: readonly string[];
  readonly causes: Readonly<Record<string, string>>;
}

/** The package as it would be published, with the addon for `architectures`, all by default; dist must be built.
 *  Undefined when there is no addon for this machine to pack: a compiler is missing. */
export function packPackage(folder: string, ...architectures: string[]): string | undefined {
  const prebuild = join(repositoryRoot, 'scripts/prebuild.mjs');
  execFileSync(process.execPath, [prebuild, ...architectures], { stdio: ['ignore', 'ignore', 'inherit'] });
  if (!existsSync(join(repositoryRoot, `prebuilds/linux-${process.arch}`))) return undefined;
  execFileSync('npm', ['pack', '--pack-destination', folder], { cwd: repositoryRoot, stdio: ['ignore', 'ignore', 'inherit'] });
  return join(
    folder,
    readdirSync(folder).find((name) => name.endsWith('.tgz'))!,
  );
}

export async function newUser(options: NewUserOptions): Promise<NewUserResult> {
  const { manager, tarball, log } = options;
  const program = manager.fetched && { [manager.fetched.command]: fetchManager(manager.fetched) };
  using root = new CleanRoot({ ...(options.node && { node: options.node }), ...(program && { programs: program }) });
  const project = root.folder('project');
  const run = (command: string, more: object = {}): ReturnType<CleanRoot['run']> => root.run(command, { cwd: project, ...more });

  const node = succeeded(await run('node --version')).stdout.trim();
  log(`${manager.name}, Node.js ${node}: installs`);
  writeFileSync(join(project, 'package.json'), '{ "name": "mine", "version": "1.0.0", "private": true, "type": "module" }\n');
  manager.prepare?.(project);
  const installed = succeeded(await run(manager.install(`shoal@file:${tarball}`)));
  const modules = join(project, 'node_modules');
  const size = contents(modules);

  log('uses it from TypeScript, ES modules and CommonJS');
  const [major, minor] = node.slice(1).split('.').map(Number);
  const stripsTypes = major > 22 || (major === 22 && minor >= 18);
  writeUses(project);
  if (!stripsTypes) {
    const refused = await run(manager.run('shoal run -n 2 use.ts'));
    if (refused.code === 0 || !/tsx/.test(refused.stderr)) throw new Error(`TypeScript without tsx: ${refused.code}\n${refused.stderr}`);
    succeeded(await run(manager.install('tsx')));
  }
  for (const script of ['use.ts', 'use.js', 'use.cjs']) {
    const used = succeeded(await run(manager.run(`shoal run -q -n 2 ${script}`)));
    // Node.js prints this about its own type stripping.
    const said = used.stderr.replace(/^.*(ExperimentalWarning: Type Stripping|--trace-warnings).*\n/gm, '');
    if (!used.stdout.includes('[rank 1] 2 of 2: 3') || said !== '') throw new Error(`${script} said:\n${used.stdout}${used.stderr}`);
  }
  const info = JSON.parse(succeeded(await run(manager.run('shoal info --json'))).stdout.replace(/^[^{]*/, '')) as {
    native: { loaded: boolean };
  };
  if (!info.native.loaded) throw new Error('the addon of the package is not loaded');
  const withoutZeromq = succeeded(await run('node no-zeromq.js'));
  if (!/unsupported: .*tcp:.*install zeromq/.test(withoutZeromq.stdout)) throw new Error(`without zeromq: ${withoutZeromq.stdout}`);
  const stored = succeeded(await run(manager.run('shoal run -q --workers 2 --servers 1 store.mjs')));
  if (!stored.stdout.includes('[rank 1] pulled 2')) throw new Error(`store.mjs said:\n${stored.stdout}${stored.stderr}`);

  const causes: Record<string, string> = {};
  for (const breakage of breakages.filter(({ name }) => options.breaks(name))) {
    log(`breaks it: ${breakage.name}`);
    writeFileSync(join(project, 'broken.mjs'), brokenScript(breakage));
    const report = `report-${Object.keys(causes).length}`;
    const broken = await run(manager.run(`shoal run --grace 1s --report-dir ${report} -n 2 broken.mjs`));
    if (broken.code === 0 || !breakage.message.test(broken.stderr + broken.stdout))
      throw new Error(`${breakage.name}: the launcher ended with ${broken.code} and said\n${broken.stdout}${broken.stderr}`);
    const shown = succeeded(await run(manager.run(`shoal report ${report} --json`)));
    const { failure } = JSON.parse(shown.stdout.replace(/^[^{]*/, '')) as { failure: { headline: string } | null };
    const headline = failure?.headline ?? 'nothing';
    if (!breakage.headline.test(headline)) throw new Error(`${breakage.name}: the report begins with ${headline}`);
    if (!existsSync(join(project, report, 'report.html'))) throw new Error(`${breakage.name}: there is no page`);
    causes[breakage.name] = headline;
  }

  const done: string[] = [];
  const steps = tutorialSteps(readFileSync(join(modules, 'shoal/docs/tutorial.md'), 'utf8')).filter(({ section }) =>
    options.tutorial(section),
  );
  if (steps.length > 0) await followTutorial(root, steps, { tarball, log, done });
  return { manager: manager.name, node, installSeconds: Math.round(installed.seconds * 10) / 10, ...size, tutorial: done, causes };
}

interface TutorialOptions {
  readonly tarball: string;
  readonly log: (line: string) => void;
  readonly done: string[];
}

/** Follows the tutorial word for word, except that `npm install shoal` takes the tarball. */
async function followTutorial(root: CleanRoot, steps: readonly TutorialStep[], { tarball, log, done }: TutorialOptions): Promise<void> {
  const cwd = root.folder('tutorial');
  for (const { section, files, commands, output } of steps) {
    const machines = [...new Set(commands.flatMap(({ machine }) => machine ?? []))];
    if (machines.length > 0 && process.getuid?.() !== 0) {
      log(`tutorial, ${section}: left out, only root makes network namespaces`);
      continue;
    }
    for (const { name, text } of files) writeFileSync(join(cwd, name), text);
    log(`tutorial, ${section}: ${commands.map(({ line }) => line).join(' && ')}`);
    let said = '';
    if (machines.length > 0) {
      using network = new Machines(machines);
      const ended = await Promise.all(
        commands.map(({ line, machine = '' }) =>
          root.run(line, { cwd, within: network.enter(machine), env: { SHOAL_HOST_ID: `tutorial-${machine}` } }),
        ),
      );
      for (const each of ended) said += succeeded(each).stdout + each.stderr;
    } else {
      for (const { line } of commands) {
        const ended = succeeded(await root.run(line.replace('install shoal', `install ${tarball}`), { cwd }));
        said += ended.stdout + ended.stderr;
      }
    }
    const missing = output.filter((pattern) => !pattern.test(said));
    if (missing.length > 0) throw new Error(`tutorial, ${section}: ${missing.join()} is not in what was printed:\n${said}`);
    if (!done.includes(section)) done.push(section);
  }
}

/** Hosts of one network, made of network namespaces. */
class Machines implements Disposable {
  readonly #names = new Map<string, string>();

  constructor(addresses: readonly string[]) {
    const bridge = `shoal-nu-${process.pid % 10_000}`;
    const ip = (...args: string[]): unknown => execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'inherit'] });
    // The network is in a namespace of its own, too: nothing of this machine is touched.
    this.#names.set('', bridge);
    ip('netns', 'add', bridge);
    ip('-n', bridge, 'link', 'add', 'wire', 'type', 'bridge');
    ip('-n', bridge, 'link', 'set', 'wire', 'up');
    for (const [index, address] of addresses.entries()) {
      const name = `${bridge}-${index}`;
      this.#names.set(address, name);
      ip('netns', 'add', name);
      ip('-n', name, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', `port${index}`, 'netns', bridge);
      ip('-n', bridge, 'link', 'set', `port${index}`, 'master', 'wire', 'up');
      ip('-n', name, 'addr', 'add', `${address}/24`, 'dev', 'eth0');
      ip('-n', name, 'link', 'set', 'eth0', 'up');
      ip('-n', name, 'link', 'set', 'lo', 'up');
    }
  }

  enter(address: string): string[] {
    return ['ip', 'netns', 'exec', this.#names.get(address) as string];
  }

  [Symbol.dispose](): void {
    for (const name of this.#names.values()) spawnSync('ip', ['netns', 'del', name]);
  }
}

/** Writes programs that do the same work in each language: the sum of 1 and 2. */
function writeUses(project: string): void {
  const body = (types: string): string => `
const x${types} = new Float32Array([group.rank + 1]);
await group.allReduce(x, { op: ReduceOp.Sum });
console.log(\`\${group.rank + 1} of \${group.size}: \${x[0]}\`);
await group.destroy();
`;
  const module = `import { initProcessGroup, ReduceOp } from 'shoal';\nconst group = await initProcessGroup();`;
  writeFileSync(join(project, 'use.ts'), module + body(': Float32Array<ArrayBuffer>'));
  writeFileSync(join(project, 'use.js'), module + body(''));
  writeFileSync(
    join(project, 'use.cjs'),
    `const { initProcessGroup, ReduceOp } = require('shoal');\n(async () => {\nconst group = await initProcessGroup();${body('')}})();\n`,
  );
  writeFileSync(
    join(project, 'store.mjs'),
    `import { create } from 'shoal/kvstore';
const kv = await create('dist_sync');
const value = new Float32Array([1]);
await kv.init('w', value);
await kv.pushPull('w', value);
console.log(\`pulled \${value[0]}\`);
await kv.close();
`,
  );
  writeFileSync(
    join(project, 'no-zeromq.js'),
    `import { MessagingContext, Router } from 'shoal/messaging';
const router = new Router(new MessagingContext({ world: 'w', secret: new Uint8Array(32) }));
await router.bind('tcp://127.0.0.1:*').catch((error) => console.log(\`\${error.code}: \${error.message}\`));
`,
  );
}

/** Fetches a manager into a cache, once. @returns its program. */
function fetchManager({ package: name, program }: NonNullable<Manager['fetched']>): string {
  const cache = join(repositoryRoot, 'node_modules/.cache', name.replace(/[@/]/g, '-'));
  const path = join(cache, 'node_modules', program);
  if (!existsSync(path)) {
    mkdirSync(cache, { recursive: true });
    const flags = ['--prefix', cache, '--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--ignore-scripts'];
    execFileSync('npm', ['install', ...flags, name], { stdio: ['ignore', 'ignore', 'inherit'] });
  }
  return path;
}

/** Numbers of packages and bytes of an installation. */
function contents(modules: string): { packages: number; bytes: number } {
  let [packages, bytes] = [0, 0];
  // pnpm's folders are links to others.
  const seen = new Set<number>();
  for (const name of readdirSync(modules, { recursive: true, encoding: 'utf8' })) {
    const path = join(modules, name);
    const entry = statSync(path, { throwIfNoEntry: false });
    if (entry?.isFile() !== true || seen.has(entry.ino)) continue;
    seen.add(entry.ino);
    bytes += entry.size;
    if (/(^|node_modules\/)(@[^/]+\/)?[^/@]+\/package\.json$/.test(name)) packages++;
  }
  return { packages, bytes };
}

/** A temporary folder, removed with its contents. */
export class TemporaryFolder implements Disposable {
  readonly path = join(tmpdir(), `shoal-packed-${process.pid}`);

  constructor() {
    mkdirSync(this.path);
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}
