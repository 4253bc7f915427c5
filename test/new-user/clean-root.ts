/** A machine as a new user has it, as far as a process can tell: an empty home, Node.js, a package manager, and the commands of a
 *  bare system in the path; no compiler, no make, no Python. */
import { spawn, spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

const systemCommands = [
  'sh',
  'env',
  'cat',
  'cp',
  'mkdir',
  'rm',
  'sleep',
  'uname',
  'dirname',
  'basename',
  'sed',
  'readlink',
  'realpath',
  'ip',
  'tar',
  'gzip',
];

export interface Said {
  readonly command: string;
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly seconds: number;
}

export interface CleanRootOptions {
  /** Node.js to use, with its npm; default: this one. */
  readonly node?: string;
  /** Programs by their names in the path: JavaScript that Node.js runs. */
  readonly programs?: Readonly<Record<string, string>>;
}

export class CleanRoot implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), 'shoal-new-user-'));
  readonly #environment: NodeJS.ProcessEnv;

  constructor({ node = process.execPath, programs = {} }: CleanRootOptions = {}) {
    const bin = join(this.path, 'bin');
    mkdirSync(bin);
    symlinkSync(node, join(bin, 'node'));
    for (const name of systemCommands) {
      const found = (process.env.PATH ?? '').split(':').find((folder) => existsSync(join(folder, name)));
      if (found !== undefined) symlinkSync(join(found, name), join(bin, name));
    }
    const npm = npmFolder();
    for (const [name, script] of Object.entries({ npm: join(npm, 'npm-cli.js'), npx: join(npm, 'npx-cli.js'), ...programs })) {
      writeFileSync(join(bin, name), `#!/bin/sh\nexec node '${script}' "$@"\n`);
      chmodSync(join(bin, name), 0o755);
    }
    const kept = Object.entries(process.env).filter(
      ([name]) => !/^(npm_|SHOAL_|VITEST|NODE_OPTIONS|PATH$|HOME$|CI$|FORCE_COLOR$|INIT_CWD)/i.test(name),
    );
    this.#environment = {
      ...Object.fromEntries(kept),
      HOME: this.path,
      PATH: bin,
      NO_COLOR: '1',
      // The cache of earlier downloads; a first download fills it.
      npm_config_cache: spawnSync('npm', ['config', 'get', 'cache'], { encoding: 'utf8' }).stdout.trim(),
      npm_config_prefer_offline: 'true',
      npm_config_audit: 'false',
      npm_config_fund: 'false',
      npm_config_update_notifier: 'false',
      // A warning about a late rank would only say how busy this machine is, so its limit is long.
      SHOAL_SLOW_MS: '600000',
    };
    const compiler = ['g++', 'c++', 'cc', 'make', 'python3'].find((name) => existsSync(join(bin, name)));
    if (compiler !== undefined) throw new Error(`${compiler} is in the path of a user who has none`);
  }

  /** A new empty folder. */
  folder(name: string): string {
    const folder = join(this.path, name);
    mkdirSync(folder);
    return folder;
  }

  /** Runs a command by a shell, in this folder, as a user types it. `within`: words before the shell, such as those that enter a
   *  network namespace. */
  async run(
    command: string,
    options: { readonly cwd: string; readonly env?: Readonly<Record<string, string>>; readonly within?: readonly string[] },
  ): Promise<Said> {
    const started = performance.now();
    const [program, ...args] = [...(options.within ?? []), 'sh', '-c', command];
    const child = spawn(program, args, {
      cwd: options.cwd,
      env: { ...this.#environment, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let [stdout, stderr] = ['', ''];
    child.stdout.on('data', (data: Buffer) => (stdout += data.toString()));
    child.stderr.on('data', (data: Buffer) => (stderr += data.toString()));
    const code = await new Promise<number | null>((resolve, reject) => {
      child.on('error', reject);
      child.on('close', resolve);
    });
    return { command, code, stdout, stderr, seconds: (performance.now() - started) / 1000 };
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}

/** @throws Error with all output when it failed. */
export function succeeded(said: Said): Said {
  if (said.code !== 0) throw new Error(`${said.command} ended with ${said.code}:\n${said.stdout}${said.stderr}`);
  return said;
}

/** Folder of npm's own programs. */
function npmFolder(): string {
  const root = spawnSync('npm', ['root', '-g'], { encoding: 'utf8' }).stdout.trim();
  const candidates = [join(root, 'npm/bin'), join(dirname(process.execPath), '../lib/node_modules/npm/bin')];
  const found = candidates.find((folder) => existsSync(join(folder, 'npm-cli.js')));
  if (found === undefined) throw new Error(`npm is in none of ${candidates.join(', ')}`);
  return found;
}
