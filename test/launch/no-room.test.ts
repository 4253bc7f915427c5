/** Folders and memory without room: a trace or a report that cannot be written is a warning, and the job has the result that it has; shared memory
 *  that a rank cannot have is `out-of-memory` on all ranks, never a SIGBUS. Small folders are mounted in a mount namespace of their own. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { loadNative } from '../../src/memory/native.ts';
import { shoalRun, start, type Ended } from '../fixtures/launch-harness.ts';

const tool = spawnSync('unshare', ['--mount', 'sh', '-c', 'mount -t tmpfs tmpfs /mnt'], { encoding: 'utf8' });
const why = tool.status === 0 ? '' : ` (skipped: no mount namespace: ${(tool.stderr ?? '').trim() || 'unshare is missing'})`;
const native = loadNative({ enabled: true });
const noShm = libfabricUnavailable({ provider: 'shm' });
const main = 'dist/tools/cli/main.js';
const folder = temporaryFolder('no-room', afterAll);
const small = join(folder, 'small');
mkdirSync(small);

/** A script of which `source` is the part within a group. */
function scriptOf(name: string, source: string): string {
  const path = join(folder, `${name}.mjs`);
  const shoal = JSON.stringify(import.meta.resolve('../../dist/index.js'));
  writeFileSync(path, `const { initProcessGroup } = await import(${shoal});\nconst group = await initProcessGroup();\n${source}`);
  return path;
}

/** Runs with so many bytes of room at `place`. */
function withRoom(bytes: number, place: string, args: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
  const mounted = `mount -t tmpfs -o size=${bytes} tmpfs "$0" && exec "$@"`;
  return start(['unshare', '--mount', 'sh', '-c', mounted, place, process.execPath, main, 'run', ...args], { env }).ended;
}

const training = scriptOf(
  'training',
  `const x = group.tensor('float32', [1 << 20]);
for (let step = 0; step < 30; step++) await group.allReduce(x);
await group.destroy();
console.log('done');
process.exitCode = Number(process.argv[2] ?? 0);
`,
);

describe.skipIf(tool.status !== 0)(`in a folder without room${why}`, () => {
  it.each([0, 7])('no trace and no report: a job that ends with code %i does so, and each writer warns once', async (code) => {
    const timeline = { SHOAL_SCHEDULE_TIMELINE: join(small, 'schedule.json') };
    const {
      code: ended,
      stdout,
      stderr,
    } = await withRoom(4096, small, ['-n', '2', '--report-dir', small, training, String(code)], timeline);
    expect(ended, stderr).toBe(code);
    expect(stdout.match(/done/g)).toHaveLength(2);
    for (const rank of [0, 1]) {
      const lost = `cannot write ${small}/trace-rank-${rank}\\.json: ENOSPC.*; make room there; the job goes on without it`;
      expect(stderr.match(new RegExp(`^\\[rank ${rank}\\] .* warn +${lost}$`, 'gm')), stderr).toHaveLength(1);
    }
    expect(stderr.match(new RegExp(`^shoal: report: cannot write ${small}/.*: ENOSPC`, 'gm'))).toHaveLength(1);
    expect(stderr).not.toContain('closing the world');
  });

  // Two checkpoints of 1 MiB have room, which those of 4 MiB have not.
  const checkpointing = scriptOf(
    'checkpointing',
    `const { Checkpoints } = await import(${JSON.stringify(import.meta.resolve('../../dist/ddp/index.js'))});
const checkpoints = new Checkpoints(group, ${JSON.stringify(join(small, 'ddp'))});
const save = (version, count) => checkpoints.save({ tensors: { x: new Float32Array(count).fill(version) }, state: { version } });
await save(1, 1 << 18);
const told = await save(2, 1 << 20).then(() => ({}), (error) => error);
const sum = Float32Array.of(1);
await group.allReduce(sum);
const found = await checkpoints.latest();
const x = new Float32Array(1 << 18);
await found.load({ x });
const again = await save(3, 1 << 18);
console.log(JSON.stringify({ code: told.code, message: told.message, sum: sum[0], state: found.state, whole: x.every((each) => each === 1), again }));
await group.destroy();
`,
  );

  it('a checkpoint of a training fails by name on all ranks, the one before stays, and the training goes on', async () => {
    const { code, stdout, stderr } = await withRoom(3 * 2 ** 20, small, ['-q', '-n', '2', checkpointing]);
    expect(code, stderr).toBe(0);
    const reports = [...stdout.matchAll(/\{.*\}/g)].map(([line]) => JSON.parse(line) as Record<string, unknown>);
    expect(reports).toHaveLength(2);
    const message = expect.stringMatching(/rank \d.*(ENOSPC|no space left)/) as string;
    for (const report of reports) expect(report).toEqual({ code: 'system', message, sum: 2, state: { version: 1 }, whole: true, again: 2 });
  });

  const pushing = join(folder, 'pushing.mjs');
  writeFileSync(
    pushing,
    `const { create } = await import(${JSON.stringify(import.meta.resolve('../../dist/kvstore/index.js'))});
const kv = await create('dist_sync');
const [small, large] = [new Float32Array(1 << 18), new Float32Array(1 << 20)];
const state = ${JSON.stringify(join(small, 'state'))};
await kv.init('small', small);
await kv.pushPull('small', small.fill(1), small);
await kv.saveState(state);
await kv.init('large', large);
await kv.pushPull(['small', 'large'], [small.fill(2), large.fill(2)], [small, large]);
const told = await kv.saveState(state).then(() => ({}), (error) => error);
await kv.pushPull(['small', 'large'], [small.fill(3), large.fill(3)], [small, large]);
const left = (await import('node:fs')).readdirSync(state + '/server-0-0');
console.log(JSON.stringify({ code: told.code, message: told.message, values: [small[0], large[0]], left }));
await kv.close();
`,
  );

  it('saveState and the checkpoints of servers fail by name, and the training goes on', async () => {
    const flags = ['-q', '--workers', '1', '--servers', '1', '--checkpoint-dir', join(small, 'checkpoints'), pushing];
    const { code, stdout, stderr } = await withRoom(6 * 2 ** 20, small, flags, { SHOAL_KV_CHECKPOINT_MS: '20' });
    expect(code, stderr).toBe(0);
    const report = JSON.parse(/\{.*\}/.exec(stdout)?.[0] ?? '{}') as unknown;
    const left = ['snapshot-00000001.safetensors'];
    expect(report).toEqual({ code: 'system', message: expect.stringContaining('ENOSPC') as string, values: [3, 3], left });
    expect(stderr).toMatch(/\[server 0\].*warn.*ENOSPC/);
  });

  it.skipIf(native === undefined)('/dev/shm: ranks share memory all the same', async () => {
    const { code, stdout, stderr } = await withRoom(65_536, '/dev/shm', ['-n', '2', training], { SHOAL_FABRICS: 'shm' });
    expect(code, stderr).toBe(0);
    expect(stdout.match(/done/g)).toHaveLength(2);
  });

  // The library offers `shm` where there is room for a file of each processor; every connection of a rank takes one.
  const processors = availableParallelism();
  const ranks = Math.ceil(1 + Math.sqrt(processors + 2));
  const whyNoShm = noShm === undefined ? '' : ` (skipped: ${noShm})`;
  it.skipIf(noShm !== undefined)(`/dev/shm: libfabric's shm says how much it needs, and nobody is killed${whyNoShm}`, async () => {
    const libfabric = { SHOAL_FABRICS: 'libfabric', SHOAL_LIBFABRIC_PROVIDER: 'shm' };
    const room = (processors * 16 + 2) * 2 ** 20;
    const { code, stderr } = await withRoom(room, '/dev/shm', ['-n', String(ranks), training], libfabric);
    expect(code, stderr).toBe(1);
    expect(stderr).not.toContain('SIGBUS');
    const message =
      /rank \d+ ran out of memory while making an endpoint of shm for rank \d+ \(a file of 16777216 bytes in \/dev\/shm, which has room for \d+/;
    expect(stderr).toMatch(message);
    expect(stderr).toMatch(/the size of \/dev\/shm/);
  });
});

it.each([
  ['a tensor', "await group.allReduce(group.tensor('float32', [1 << 22]))"],
  ['an array', 'await group.allReduce(new Float32Array(1 << 22))'],
])('memory that one rank may not have for %s is out-of-memory on all ranks, with bytes, budget and the next step', async (_, call) => {
  const script = scriptOf(
    'budget',
    `const told = await (async () => ${call})().then(() => 'none', (error) => error);
console.log(JSON.stringify({ code: told.code, message: told.message, bytes: told.bytes, resource: told.resource, peer: told.peer ?? null }));
if (group.rank === 1) throw told;
`,
  );
  const limited = join(folder, 'limited.mjs');
  const module = JSON.stringify(script);
  writeFileSync(limited, `if (process.env.RANK === '1') process.env.SHOAL_SHARED_MEMORY_MAX = '8MiB';\nawait import(${module});\n`);
  const { stdout, stderr } = await shoalRun('-n', '3', limited).ended;
  const told = new Map(
    [...stdout.matchAll(/^\[rank (\d)\] (\{.*\})$/gm)].map(([, rank, line]) => [Number(rank), JSON.parse(line) as unknown]),
  );
  const message =
    'rank 1 ran out of shared memory: a region of 16777216 bytes does not fit the budget, 0 of 8388608 bytes are in use; release tensors or raise the budget (SHOAL_SHARED_MEMORY_MAX)';
  for (const rank of [0, 1, 2]) {
    const expected = { code: 'out-of-memory', message, bytes: 16_777_216, resource: 'shared memory', peer: rank === 1 ? null : 1 };
    expect(told.get(rank), stderr).toEqual(expected);
  }
});
