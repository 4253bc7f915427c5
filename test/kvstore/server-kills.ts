/** Kills, stops and resumes the servers of a launched job and their standbys, at random, again and again, while workers push. No
 *  update may be lost or counted twice: the workers check every value that they see.
 *
 *      npm run soak:servers -- --kills 100 --seed 1 --store dist_sync
 *
 *  A server is hurt when it has a standby with the whole state; of two servers, both may be hurt at once. */
import { parseArgs } from 'node:util';
import { seededRandom, type Random } from '../../src/base/random.ts';
import buildFixtures from '../support/fixtures.ts';
import { freezeSilenceMs, LaunchedServers, type LaunchedServer } from '../support/launched-servers.ts';

export interface ServerKillsOptions {
  readonly kills: number;
  readonly seed: number;
  readonly store: 'dist_sync' | 'dist_async';
  readonly report?: (line: string) => void;
}

type Harm = (job: LaunchedServers, server: LaunchedServer) => Promise<void>;

/** Harms; short ones are listed more often. */
const harms: readonly [name: string, harm: Harm][] = [
  ['kill the primary', (job, server) => job.killPrimary(server)],
  ['kill the primary', (job, server) => job.killPrimary(server)],
  ['kill the standby', (job, server) => job.killStandby(server)],
  ['stop the primary until it is replaced', (job, server) => job.freezePrimary(server)],
  ['stop the standby until it is given up', (job, server) => job.freezeStandby(server)],
];

/** @returns the number of times that each harm was done. @throws when a worker's books do not balance, or anything hangs. */
export async function runServerKills({ kills, seed, store, report }: ServerKillsOptions): Promise<Map<string, number>> {
  const random = seededRandom(seed);
  const done = new Map<string, number>();
  const flags = ['--server-restarts', '1000000'];
  await using job = new LaunchedServers({ workers: 2, servers: 2, store, silenceMs: freezeSilenceMs, flags });
  for (let count = 0; count < kills;) {
    const victims = job.servers.filter(() => random.integer(2) === 0).slice(0, kills - count);
    await Promise.all(victims.map((server) => hurt(job, server, random, done)));
    count += victims.length;
    if (victims.length > 0) report?.(`${count} of ${kills}`);
  }
  // The server that was hurt last is whole again, too.
  await Promise.all(job.servers.map((server) => job.stoodBy(server)));
  await job.finish().catch((cause: unknown) => {
    throw new Error(`seed ${seed}`, { cause });
  });
  const exact = job.output.match(/worker \d+: \d+ pushes, exact/g) ?? [];
  if (exact.length !== 2) throw new Error(`seed ${seed}: ${exact.length} workers of 2 had exact values\n${job.output}`);
  report?.(exact.join('; '));
  return done;
}

async function hurt(job: LaunchedServers, server: LaunchedServer, random: Random, done: Map<string, number>): Promise<void> {
  const [name, harm] = harms[random.integer(harms.length)];
  const delayMs = random.integer(300);
  await job.stoodBy(server);
  await new Promise((resolve) => setTimeout(resolve, delayMs));
  await harm(job, server);
  done.set(name, (done.get(name) ?? 0) + 1);
}

if (process.argv[1]?.endsWith('server-kills.ts')) {
  const { values } = parseArgs({ options: { kills: { type: 'string' }, seed: { type: 'string' }, store: { type: 'string' } } });
  const { kills = '100', seed = '1', store = 'dist_sync' } = values;
  if (store !== 'dist_sync' && store !== 'dist_async') throw new Error(`--store ${store} is not dist_sync or dist_async`);
  await buildFixtures();
  const report = (line: string): void => console.log(line);
  const done = await runServerKills({ kills: Number(kills), seed: Number(seed), store, report });
  for (const [name, times] of done) console.log(`${times} × ${name}`);
}
