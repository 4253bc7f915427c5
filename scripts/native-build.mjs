// Compiles the addon and shoal-rank, for this machine (install-native.mjs) and for the package (prebuild.mjs). Works in a folder
// of its own for each target, so that neither disturbs the other and a second build compiles only changed files.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { nativeSources } from './native-interface.mjs';

export const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** File names of the binaries: in build/Release, and in prebuilds/<platform>-<arch> as node-gyp-build looks for them. */
export const binaries = { built: ['shoal.node', 'shoal-rank'], prebuilt: ['shoal.napi.glibc.node', 'shoal-rank'] };

/** Oldest glibc that must do: the one that Node.js 20 itself needs. */
const glibcFloor = '2.28';
const systemLibraries = /^(lib(c|m|pthread|dl)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+)$/;

/** Compiles into `target`, whose files are replaced only by complete ones. Returns undefined, or the reason why there are none:
 *  the first error, and the file with all of the compiler's output. `environment`: `CC` and `CXX` of a cross compiler. */
export function compileNative({ arch, portable, target, names, environment = {} }) {
  const nodeGyp = nodeGypPath();
  if (nodeGyp === undefined) return { reason: 'node-gyp is not installed', missing: ['node-gyp'] };
  const folder = join(root, 'build', `native-${process.platform}-${arch}`);
  const copy = join(folder, 'native');
  for (const name of ['native', 'src']) mkdirSync(join(folder, name), { recursive: true });
  for (const path of nativeSources(folder)) if (!existsSync(join(root, path))) rmSync(join(folder, path));
  for (const path of nativeSources(root)) cpSync(join(root, path), join(folder, path), { preserveTimestamps: true });
  cpSync(join(root, 'scripts/native-interface.mjs'), join(folder, 'scripts/native-interface.mjs'));

  const headers = headersPrefix();
  const options = ['--release', '--jobs=max', `--arch=${arch}`, ...(headers ? [`--nodedir=${headers}`] : [])];
  const run = spawnSync(process.execPath, [nodeGyp, 'configure', 'build', ...options], {
    cwd: copy,
    env: {
      ...process.env,
      ...environment,
      GYP_DEFINES: `portable=${portable ? 1 : 0}`,
      // The PATH leads to node, which binding.gyp runs.
      PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}`,
    },
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  const output = `${run.stdout ?? ''}${run.stderr ?? ''}`;
  const log = join(folder, 'native-build.log');
  writeFileSync(log, output);
  const made = binaries.built.map((name) => join(copy, 'build/Release', name));
  if (run.status !== 0 || !made.every((file) => existsSync(file))) {
    const firstError = output.split('\n').find((line) => /\berror\b|ERR!/i.test(line)) ?? run.error?.message ?? 'no message';
    return { reason: `${firstError.trim()} (all of it in ${log})` };
  }
  mkdirSync(target, { recursive: true });
  // Each file is replaced by a new one, not rewritten: running ranks have the old one mapped.
  for (const [index, file] of made.entries()) {
    rmSync(join(target, names[index]), { force: true });
    copyFileSync(file, join(target, names[index]));
  }
  return undefined;
}

/** A hash of the sources. N-API keeps one binary valid over Node versions, so Node is not in it. */
export function sourcesHash() {
  const hash = createHash('sha256');
  for (const path of nativeSources(root)) hash.update(`${path}\n`).update(readFileSync(join(root, path)));
  return hash.digest('hex');
}

/** The names of those of `tools` (a name, and its commands) that do not start. */
export function missingTools(tools) {
  return tools.filter(([, commands]) => !commands.some(answers)).map(([name]) => name);
}

/** The reason why a binary does not run on every system that has Node.js 20: a newer glibc than `floor`, or libraries that are
 *  not everywhere. Undefined: it does. `objdump` must know its architecture. */
export function unportable(file, { floor = glibcFloor, objdump = 'objdump' } = {}) {
  const { status, stdout, stderr, error } = spawnSync(objdump, ['-p', file], { encoding: 'utf8', env: { ...process.env, LC_ALL: 'C' } });
  if (status !== 0) return `${objdump} failed: ${error?.message ?? stderr}`;
  const libraries = [...stdout.matchAll(/^\s+NEEDED\s+(\S+)/gm)].map(([, name]) => name).filter((name) => !systemLibraries.test(name));
  const newer = [...stdout.matchAll(/\s([A-Z]+)_(\d[\d.]*)$/gm)]
    .filter(([, family, version]) => family !== 'GLIBC' || version.localeCompare(floor, 'en', { numeric: true }) > 0)
    .map(([, family, version]) => `${family}_${version}`);
  const wanted = [...new Set([...libraries, ...newer])];
  if (wanted.length === 0) return undefined;
  return `${file} needs ${wanted.join(', ')}, the floor is glibc ${floor} and nothing else: objdump -T names the symbols, native/glibc_floor.cc is their place`;
}

function answers(command) {
  const [program, ...options] = command.split(' ');
  return spawnSync(program, [...options, '--version'], { stdio: 'ignore' }).status === 0;
}

/** Path of node-gyp: the project's, that of the package manager that runs us, or of the npm that came with Node.js. */
function nodeGypPath() {
  const candidates = [
    ownNodeGyp(),
    process.env.npm_config_node_gyp,
    join(dirname(realpathSync(process.execPath)), '../lib/node_modules/npm/node_modules/node-gyp/bin/node-gyp.js'),
  ];
  return candidates.find((path) => path !== undefined && existsSync(path));
}

function ownNodeGyp() {
  try {
    return createRequire(import.meta.url).resolve('node-gyp/bin/node-gyp.js');
  } catch {
    return undefined;
  }
}

/** Folder of Node's own headers on this machine; undefined lets node-gyp download them. */
function headersPrefix() {
  const own = dirname(dirname(realpathSync(process.execPath)));
  return [own, '/usr', '/usr/local'].find((prefix) => existsSync(join(prefix, 'include', 'node', 'node_api.h')));
}
