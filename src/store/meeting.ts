/** The meeting of the ranks of one host, without an address or a secret given to them: rank 0 serves the store on loopback, makes
 *  a fresh secret, and leaves both in a file that only this user can read; the others poll for it. The store itself is the
 *  TCP store, so that the death of rank 0 is noticed; the file is only read while a rank joins.
 *
 *      $XDG_RUNTIME_DIR/shoal-<uid>/  or  <tmp>/shoal-<uid>/       0700, owned by us, or refused
 *          port-29500        {"version":1,"host":"127.0.0.1","port":29500,"secret":"…","pid":4711}
 *
 *  A file that a killed rank 0 left behind names a server that is gone or knows another secret: a joining rank reads again
 *  until its deadline, rank 0 replaces it. */
import { lstat, mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { isAlive } from '../base/files/process-identity.ts';
import { readRegularFile } from '../base/files/read-file.ts';
import { retry } from '../base/connections/retry.ts';
import { integer, literal, object, parse, that, type ValueOf } from '../base/schema.ts';
import type { Environment } from '../base/settings/settings.ts';
import { StoreClient, type StoreClientOptions } from './store-client.ts';
import { StoreServer, type StoreServerOptions } from './store-server.ts';

export interface MeetingPoint {
  readonly host: string;
  readonly port: number;
  readonly secret: Uint8Array;
}

const isSecret = (value: unknown): boolean => typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
const meetingRecord = object({
  version: literal(1),
  host: literal('127.0.0.1'),
  port: integer({ min: 1, max: 65_535 }),
  secret: that<string>('64 hexadecimal digits', isSecret),
  pid: integer(),
});
type MeetingRecord = ValueOf<typeof meetingRecord>;

const secretBytes = 32;
const lookMs = 25;
/** Leftovers of killed jobs are removed when they are older than this and their process is gone. */
const leftoverMs = 3_600_000;

/** The user's own directory for meetings. @throws ShoalError `config` when somebody else could read or replace its files. */
export async function privateDirectory(environment: Environment): Promise<string> {
  const { uid } = userInfo();
  const runtime = environment['XDG_RUNTIME_DIR'];
  const directory = join(runtime === undefined || runtime === '' ? tmpdir() : runtime, `shoal-${uid}`);
  try {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const status = await lstat(directory);
    if (status.isDirectory() && status.uid === uid && (status.mode & 0o077) === 0) return directory;
  } catch (error) {
    const message = `${directory} cannot be used for meeting: ${messageOf(error)}; set MASTER_ADDR, MASTER_PORT and SHOAL_SECRET`;
    throw new ShoalError('config', message, { cause: error });
  }
  const message = `${directory} must be a directory of uid ${uid} with mode 0700; remove it, or set MASTER_ADDR, MASTER_PORT and SHOAL_SECRET`;
  throw new ShoalError('config', message);
}

/** Rank 0: serves, and tells where. `leave` removes the file.
 *  @throws ShoalError `config` when another rank 0 of the same job is alive. */
export async function serveMeeting(
  path: string,
  options: Omit<StoreServerOptions, 'secret' | 'host'>,
): Promise<{ server: StoreServer; point: MeetingPoint; leave: () => Promise<void> }> {
  await refuseSecondRankZero(path, options);
  await removeLeftovers(join(path, '..'), options.clock.wallNow());
  const secret = options.random.bytes(secretBytes);
  const server = await StoreServer.listen({ ...options, secret, host: '127.0.0.1' });
  const point = { host: server.host, port: server.port, secret };
  const record = { version: 1, ...point, secret: Buffer.from(secret).toString('hex'), pid: process.pid };
  const draft = `${path}.${Buffer.from(options.random.bytes(8)).toString('hex')}`;
  await writeFile(draft, JSON.stringify(record), { flag: 'wx', mode: 0o600 });
  await rename(draft, path);
  const leave = async (): Promise<void> => {
    const now = await readMeeting(path);
    if (now !== undefined && Buffer.compare(now.secret, secret) === 0) await rm(path, { force: true });
  };
  return { server, point, leave };
}

/** The other ranks: a client of the store, and where it is.
 *  @throws ShoalError `timeout` when rank 0 does not appear within `connectTimeoutMs`; `config` when it refuses. */
export async function joinMeeting(
  path: string,
  options: Omit<StoreClientOptions, 'secret' | 'host' | 'port'>,
): Promise<{ store: StoreClient; point: MeetingPoint }> {
  const { clock, random, connectTimeoutMs = 30_000, rank, signal } = options;
  const isFinal = ({ code }: ShoalError): boolean => code === 'config' || code === 'aborted';
  const outcome = await retry(
    { clock, random, timeoutMs: connectTimeoutMs, signal, isFinal, firstPauseMs: lookMs, pauseMostMs: lookMs },
    async (_, leftMs) => {
      const point = await readMeeting(path);
      if (point === undefined) throw new ShoalError('peer-lost', 'the file was not there');
      try {
        return { store: await StoreClient.connect({ ...options, ...point, connectTimeoutMs: Math.min(leftMs, 1000) }), point };
      } catch (thrown) {
        const error = ShoalError.from(thrown);
        throw isFinal(error) ? error : new ShoalError('peer-lost', error.message, { cause: error });
      }
    },
  );
  if ('value' in outcome) return outcome.value;
  const { why, error } = outcome;
  if (why === 'final') throw error;
  if (why === 'aborted') throw new ShoalError('aborted', `rank ${rank}: waiting for rank 0 was aborted`, { cause: signal?.reason });
  const message = `rank ${rank} did not find rank 0 of its job through ${path} in ${connectTimeoutMs} ms; last: ${error?.message ?? 'none'}. Is rank 0 running, on this host and as this user?`;
  throw new ShoalError('timeout', message, { rank, peer: 0, operation: 'store connect', timeoutMs: connectTimeoutMs });
}

async function refuseSecondRankZero(path: string, options: Omit<StoreServerOptions, 'secret' | 'host'>): Promise<void> {
  const point = await readMeeting(path);
  if (point === undefined) return;
  const { clock, random, settings, world } = options;
  let other: StoreClient;
  try {
    // One attempt is enough: a port at which nobody listens refuses at once, and a busy rank 0 has the time of an attempt to answer.
    other = await StoreClient.connect({ clock, random, settings, world, rank: 0, ...point, attemptsMax: 1 });
  } catch {
    // Nobody is there, or somebody else by now: a leftover.
    return;
  }
  await other.close();
  const message = `another rank 0 already serves this job at ${point.host}:${point.port} (${path}); two jobs have the same MASTER_PORT, or two processes the same RANK`;
  throw new ShoalError('config', message, { rank: 0 });
}

/** Reads the file of a meeting point; undefined when there is none, or it is not ours. */
async function readMeeting(path: string): Promise<MeetingPoint | undefined> {
  const record = parseRecord(await readText(path).catch(() => ''));
  return record && { host: record.host, port: record.port, secret: Buffer.from(record.secret, 'hex') };
}

async function readText(path: string): Promise<string> {
  return (await readRegularFile(path, { bytesMax: 2 ** 16 })).toString();
}

function parseRecord(text: string): MeetingRecord | undefined {
  try {
    return parse('a meeting', meetingRecord, JSON.parse(text));
  } catch {
    return undefined;
  }
}

async function removeLeftovers(directory: string, nowMs: number): Promise<void> {
  for (const name of await readdir(directory)) {
    const path = join(directory, name);
    try {
      if (nowMs - (await lstat(path)).mtimeMs < leftoverMs) continue;
      const record = parseRecord(await readText(path));
      if (record === undefined || !isAlive(record.pid)) await rm(path, { force: true });
    } catch {
      // Another rank 0 was faster.
    }
  }
}
