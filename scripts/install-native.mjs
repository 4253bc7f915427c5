// Builds the native addon into build/Release/shoal.node; run by `npm ci` and `npm install`.
//
// Never fails an installation: everything works without the addon, only slower and without memory shared between
// processes. When it cannot build, it prints what is missing, what is lost and how to get it.
// It must not know what the addon does. SHOAL_NATIVE=0 skips the build.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const buildFolder = join(root, 'build');
const binary = join(buildFolder, 'Release', 'shoal.node');
const stampFile = join(buildFolder, 'native.stamp');
const logFile = join(buildFolder, 'native-build.log');

const lost = 'Shoal works without it, with slower kernels and no memory shared between processes (ranks talk TCP)';

main();

function main() {
  if (process.env.SHOAL_NATIVE === '0') return say('native addon skipped: SHOAL_NATIVE=0');
  if (process.platform !== 'linux') return say(`native addon not built: it needs Linux, this is ${process.platform}. ${lost}.`);

  const stamp = stampOf();
  if (existsSync(binary) && existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp) return say('native addon is up to date');

  const missing = missingTools();
  if (missing.length > 0) {
    return say(
      `native addon not built: ${missing.join(', ')} not found. ${lost}. To get it: apt-get install g++ make python3, then npm rebuild.`,
    );
  }
  const nodeGyp = nodeGypPath();
  if (nodeGyp === undefined) return say(`native addon not built: node-gyp is not installed. ${lost}. To get it: npm install.`);

  mkdirSync(buildFolder, { recursive: true });
  rmSync(stampFile, { force: true });
  const headers = headersPrefix();
  const run = spawnSync(process.execPath, [nodeGyp, 'configure', 'build', '--jobs=max', ...(headers ? [`--nodedir=${headers}`] : [])], {
    cwd: root,
    // binding.gyp runs node.
    env: { ...process.env, PATH: `${dirname(process.execPath)}${delimiter}${process.env.PATH}` },
    encoding: 'utf8',
    maxBuffer: 64 * 1024 * 1024,
  });
  const output = `${run.stdout ?? ''}${run.stderr ?? ''}`;
  writeFileSync(logFile, output);
  if (run.status !== 0 || !existsSync(binary)) {
    rmSync(binary, { force: true });
    const firstError = output.split('\n').find((line) => /\berror\b|ERR!/i.test(line)) ?? run.error?.message ?? 'no message';
    return say(`native addon not built: ${firstError.trim()} (all of it in ${logFile}). ${lost}. To try again: npm rebuild.`);
  }
  writeFileSync(stampFile, stamp);
  return say('native addon built');
}

function say(line) {
  console.log(`shoal: ${line}`);
}

/** Changes when the sources or the target do. N-API keeps one binary valid over Node versions, so Node is not in it. */
function stampOf() {
  const hash = createHash('sha256').update(`${process.platform} ${process.arch}\n`);
  const sources = readdirSync(join(root, 'native')).sort();
  for (const file of ['binding.gyp', ...sources.map((name) => join('native', name))]) {
    hash.update(`${file}\n`).update(readFileSync(join(root, file)));
  }
  return hash.digest('hex');
}

function missingTools() {
  const tools = [
    ['a C++ compiler (g++)', [process.env.CXX ?? 'g++', 'c++']],
    ['make', [process.env.MAKE ?? 'make', 'gmake']],
    ['python3', [process.env.PYTHON ?? process.env.npm_config_python ?? 'python3', 'python']],
  ];
  return tools.filter(([, commands]) => !commands.some(answers)).map(([name]) => name);
}

function answers(command) {
  const [program, ...options] = command.split(' ');
  return spawnSync(program, [...options, '--version'], { stdio: 'ignore' }).status === 0;
}

function nodeGypPath() {
  try {
    return createRequire(import.meta.url).resolve('node-gyp/bin/node-gyp.js');
  } catch {
    return undefined;
  }
}

/** Where Node's own headers are on this machine; undefined lets node-gyp download them. */
function headersPrefix() {
  const own = dirname(dirname(realpathSync(process.execPath)));
  return [own, '/usr', '/usr/local'].find((prefix) => existsSync(join(prefix, 'include', 'node', 'node_api.h')));
}
