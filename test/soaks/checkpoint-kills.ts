/** `kill -9` while checkpoints are saved: `npx tsx test/soaks/checkpoint-kills.ts [--kills 100] [--seed n]`. Servers are killed while they save their
 *  checkpoints or what `saveState` asks for, and the ranks of a training while `Checkpoints` saves. After each kill the latest checkpoint is whole,
 *  no older than the last one that was saved, and nothing is left in the folder that grows. */
import { existsSync, readdirSync, readFileSync, watch } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { parseArgs } from 'node:util';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { seededRandom, systemRandom, type Random } from '../../src/base/random.ts';
import { SnapshotFolder } from '../../src/checkpoint/snapshot-folder.ts';
import { allGone, shoalRun } from '../fixtures/launch-harness.ts';
import buildFixtures, { fixtureScript } from '../support/fixtures.ts';
import { KVJob } from '../support/kv-job.ts';

export interface KillsOptions {
  readonly kills: number;
  readonly random: Random;
  readonly folder: string;
  readonly report?: (line: string) => void;
}

/** Longest delay of a kill from the first sign of a save. */
const delayMsMax = 15;
const elements = 1 << 18;

/** Kills the server of a worker that pushes the numbers 1, 2, 3, …, which replace each other; every third save is one of `saveState`.
 *  @throws when a snapshot is torn or too old, the worker sees another number than it pushed, or files are left. */
export async function killServers({ kills, random, folder, report }: KillsOptions): Promise<void> {
  const checkpointDir = join(folder, 'checkpoints');
  const stateDir = join(folder, 'state');
  const env = { SHOAL_KV_CHECKPOINT_MS: '1' };
  let version = 0;
  let stated = 0;
  {
    await using job = await KVJob.start({ workers: 1, servers: 1, checkpointDir, env });
    const [kv] = await job.stores('dist_sync');
    const value = new Float32Array(elements);
    await kv.init('w', value);
    await kv.saveState(stateDir);
    let killed = 0;
    const pushes = async (): Promise<void> => {
      while (killed < kills) {
        version++;
        await kv.pushPull('w', value.fill(version), value);
        if (value.some((each) => each !== version)) throw new Error(`push ${version} gave ${value[0]}`);
        if (version % 3 !== 0) continue;
        await kv.saveState(stateDir);
        stated = version;
      }
    };
    const harm = async (): Promise<void> => {
      let before = 0;
      for (; killed < kills; killed++) {
        const place = killed % 3 === 2 ? stateDir : checkpointDir;
        await saving(partFolder(place));
        await sleep(systemClock, random.next() * delayMsMax);
        const atLeast = stated;
        await job.kill(0);
        before = Math.max(before, await wholeVersion(partFolder(checkpointDir), before));
        await wholeVersion(partFolder(stateDir), atLeast);
        job.startServer(0);
        report?.(`${killed + 1} of ${kills} kills of a server: version ${before} is whole`);
      }
    };
    const pushing = pushes();
    await Promise.race([Promise.all([harm(), pushing]), pushing.then(harm)]);
    // Each kill before older snapshots are removed leaves one more. The save after the next one begins when all of them are gone.
    const last = newestSnapshot(partFolder(checkpointDir));
    while (newestSnapshot(partFolder(checkpointDir)) < last + 2) await kv.pushPull('w', value.fill(++version), value);
    await kv.saveState(stateDir);
  }
  for (const place of [checkpointDir, stateDir]) expectOnly(partFolder(place), 3);
  await using job = await KVJob.start({ workers: 1, servers: 1 });
  const [kv] = await job.stores('dist_sync');
  const value = new Float32Array(elements);
  await kv.init('w', value);
  await kv.loadState(stateDir);
  await kv.pull('w', value);
  if (value.some((each) => each !== version)) throw new Error(`loadState gave ${value[0]} after push ${version}`);
}

/** Kills all ranks of a training, or one of two. @throws as `killServers`. */
export async function killRanks({ kills, random, folder, report }: KillsOptions): Promise<void> {
  const program = fixtureScript('ddp-checkpoints');
  let saved = 0;
  for (let killed = 0; killed <= kills; killed++) {
    await using job = shoalRun('-q', '-n', '2', '--grace', '50ms', program, 'fill', folder);
    const [found] = saved === 0 ? [] : await job.output(/found (\d+) (\w+)/, 1);
    if (found !== undefined && (found[2] !== 'whole' || Number(found[1]) < saved)) throw new Error(`${found[0]} after ${saved}`);
    // Its own end kills the last one.
    if (killed === kills) return;
    await job.output(/saved \d+/, 2);
    expectOnly(folder, 3);
    await saving(folder);
    await sleep(systemClock, random.next() * delayMsMax);
    const ranks = childrenOf(job.pid);
    for (const pid of random.integer(2) === 0 ? ranks : ranks.slice(random.integer(2))) process.kill(pid, 'SIGKILL');
    const { stdout } = await job.ended;
    await allGone(ranks);
    saved = Math.max(...[...stdout.matchAll(/saved (\d+)/g)].map(([, number]) => Number(number)));
    report?.(`${killed + 1} of ${kills} kills of ranks: saved ${saved}`);
  }
}

/** The folder in which the one server of a job saves. */
function partFolder(place: string): string {
  return join(place, 'server-0-0');
}

/** The highest number of a snapshot in the folder. */
function newestSnapshot(folder: string): number {
  return Math.max(0, ...readdirSync(folder).map((name) => Number(/^snapshot-(\d+)\.safetensors$/.exec(name)?.[1] ?? 0)));
}

/** Resolves when something is written to a file that is not complete; one that was left by a kill does not count. */
async function saving(folder: string): Promise<void> {
  while (!existsSync(folder)) await sleep(systemClock, 5);
  await new Promise<void>((resolve, reject) => {
    const watcher = watch(folder, (_, name) => {
      if (name?.endsWith('.part') !== true) return;
      watcher.close();
      resolve();
    });
    watcher.on('error', reject);
  });
}

/** The number that fills the latest snapshot. @throws when there is none, it is torn, or less than `atLeast`. */
async function wholeVersion(folder: string, atLeast: number): Promise<number> {
  const damages: string[] = [];
  const snapshot = await new SnapshotFolder(folder, { onDamaged: ({ message }) => damages.push(message) }).load();
  if (damages.length > 0) throw new Error(damages.join('; '));
  const [large] = [...(snapshot?.tensors.values() ?? [])].filter(({ data }) => data.byteLength === 4 * elements);
  if (large === undefined) throw new Error(`${folder} has no value: ${readdirSync(folder).join(', ')}`);
  const values = new Float32Array(large.data.buffer.slice(large.data.byteOffset, large.data.byteOffset + 4 * elements));
  if (values.some((each) => each !== values[0])) throw new Error(`${folder} has a torn value`);
  if (values[0] < atLeast) throw new Error(`${folder} has version ${values[0]}, older than ${atLeast}`);
  return values[0];
}

/** @throws when more entries are in the folder: two checkpoints are kept, one may be in the making or about to be removed. */
function expectOnly(folder: string, most: number): void {
  const names = readdirSync(folder);
  if (names.length > most) throw new Error(`${folder} has ${names.length} entries: ${names.join(', ')}`);
}

/** Process ids of a launcher's ranks. */
function childrenOf(pid: number): number[] {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').filter(Boolean).map(Number);
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { kills: { type: 'string', default: '100' }, seed: { type: 'string' } } });
  const seed = Number(values.seed ?? systemRandom.integer(2 ** 31));
  const kills = Number(values.kills);
  console.log(`--kills ${kills} --seed ${seed}`);
  await buildFixtures();
  const random = seededRandom(seed);
  const folder = await mkdtemp(join(tmpdir(), 'shoal-kills-'));
  const report = (line: string): void => console.log(line);
  const ofRanks = Math.floor(kills / 3);
  await killServers({ kills: kills - ofRanks, random, folder: join(folder, 'servers'), report });
  await killRanks({ kills: ofRanks, random, folder: join(folder, 'ranks'), report });
  await rm(folder, { recursive: true });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
