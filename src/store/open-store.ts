/** Opens the store of a job by its URL: serves it where this process has to, connects to it otherwise.
 *
 *      env://              what the environment says (store/environment.ts)
 *      tcp://host:port     rank 0 serves, unless a launcher does; the others connect
 *      file:///directory   a directory that all ranks can reach and that is new for the job
 *      hash://             this process alone */
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import { systemClock, type Clock } from '../base/clock.ts';
import { partyName, serverNumber } from '../base/auth.ts';
import { ShoalError } from '../base/errors.ts';
import { systemRandom, type Random } from '../base/random.ts';
import type { LinkSettings } from '../base/secure/link.ts';
import type { Environment, Settings } from '../base/settings/settings.ts';
import { detectWorld, isLoopback, type WorldSpec } from './environment.ts';
import { FileStore } from './file-store.ts';
import { HashStore } from './hash-store.ts';
import { joinMeeting, privateDirectory, serveMeeting } from './meeting.ts';
import { StoreClient } from './store-client.ts';
import { StoreServer } from './store-server.ts';
import { PrefixStore, type Store } from './store.ts';
import type { StreamNetwork } from '../fabric/stream/stream-network.ts';

export interface OpenStoreOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** Default: the system's. */
  readonly network?: StreamNetwork;
  /** Variables that `env://` reads, and XDG_RUNTIME_DIR. Default: empty. */
  readonly environment?: Environment;
  /** Our rank. Required but for `env://`, where the environment says it, and `hash://`. */
  readonly rank?: number;
  readonly worldSize?: number;
  /** Name of the job; another job's processes are refused. Default: the address. */
  readonly world?: string;
  /** Default: what the environment says. Text counts by its UTF-8 bytes. */
  readonly secret?: string | Uint8Array;
  /** `tcp://`: who serves. Default `rank-0`. */
  readonly server?: 'rank-0' | 'elsewhere';
  /** Whether connections that leave the host are encrypted. Default: they are. */
  readonly settings?: LinkSettings;
  /** `allow`: a job over several hosts may run without a secret. Default `refuse`. */
  readonly insecure?: 'allow' | 'refuse';
  /** Timeout of waits that give none. Default 5 minutes. */
  readonly timeoutMs?: number;
  /** Ends the attempts to connect. Default 30 s. */
  readonly connectTimeoutMs?: number;
  /** Time that the serving rank's `close` waits for the others to disconnect. Default 2000. */
  readonly lingerMs?: number;
  readonly signal?: AbortSignal;
}

/** A store that is open, and what the job's other connections need. */
export interface OpenedStore {
  readonly store: Store;
  /** The rank that serves it; undefined: no rank does. */
  readonly servedBy: number | undefined;
  /** The job's secret: given, or made for this job and learnt when the ranks met. Empty where a job may run without. */
  readonly secret: Uint8Array;
  readonly world: string;
  /** The address for further clients of this job (another thread); undefined for `hash://` and worlds of one. */
  readonly url: string | undefined;
  /** The place that the environment gave this process; `env://` only. */
  readonly spec: WorldSpec | undefined;
}

interface Seat {
  readonly rank: number;
  readonly worldSize: number;
  readonly world: string;
  readonly secret: Uint8Array;
  readonly server: 'rank-0' | 'elsewhere';
}

/** @throws ShoalError `config` on a URL or environment that cannot be understood, `auth` when a job over several hosts has no
 *          secret or another one, `timeout` when the store does not answer. */
export async function openStore(url: string, options: OpenStoreOptions): Promise<OpenedStore> {
  const parsed = parseStoreUrl(url);
  switch (parsed.kind) {
    case 'env':
      return openFromEnvironment(options);
    case 'hash':
      return alone(options, options.world ?? 'alone', undefined);
    case 'file': {
      const store = await FileStore.open(parsed.directory, options);
      return { store, servedBy: undefined, secret: encode(options.secret ?? ''), world: options.world ?? url, url, spec: undefined };
    }
    case 'tcp': {
      const { rank, worldSize } = options;
      if (rank === undefined || worldSize === undefined) throw new ShoalError('usage', `${url} needs a rank and a world size`);
      const seat: Seat = {
        rank,
        worldSize,
        world: options.world ?? url,
        secret: encode(options.secret ?? ''),
        server: options.server ?? 'rank-0',
      };
      return openTcp(parsed, seat, options);
    }
  }
}

/** The store that the environment of this process says, on the real machine. @throws ShoalError as `openStore`. */
export function openStoreOf(environment: Environment, settings: Settings): Promise<OpenedStore> {
  const { timeoutMs, connectTimeoutMs, insecure } = settings;
  const limits = { timeoutMs, connectTimeoutMs, insecure: insecure ? 'allow' : 'refuse', settings } as const;
  return openStore('env://', { clock: systemClock, random: systemRandom, environment, ...limits });
}

export type StoreUrl =
  | { readonly kind: 'env' | 'hash' }
  | { readonly kind: 'file'; readonly directory: string }
  | { readonly kind: 'tcp'; readonly host: string; readonly port: number };

/** @throws ShoalError `config`. */
export function parseStoreUrl(url: string): StoreUrl {
  if (url === 'env://' || url === 'env:') return { kind: 'env' };
  if (url === 'hash://' || url === 'hash:') return { kind: 'hash' };
  const accepted = 'expected env://, tcp://host:port, file:///directory or hash://';
  try {
    const parsed = new URL(url);
    if (parsed.protocol === 'file:' && parsed.pathname !== '/') return { kind: 'file', directory: fileURLToPath(parsed) };
    const port = Number(parsed.port);
    const bare = parsed.pathname === '' || parsed.pathname === '/';
    if (parsed.protocol === 'tcp:' && parsed.hostname !== '' && port >= 1 && bare) {
      return { kind: 'tcp', host: parsed.hostname.replace(/^\[|\]$/g, ''), port };
    }
  } catch (error) {
    throw new ShoalError('config', `'${url}' is not the URL of a store; ${accepted}`, { cause: error });
  }
  throw new ShoalError('config', `'${url}' is not the URL of a store; ${accepted}`);
}

async function openFromEnvironment(options: OpenStoreOptions): Promise<OpenedStore> {
  const environment = options.environment ?? {};
  const spec = detectWorld(environment, { parentPid: process.ppid });
  const secret = encode(options.secret ?? spec.secret ?? '');
  const { rank, worldSize, meeting } = spec;
  const world = options.world ?? spec.world;
  switch (meeting.kind) {
    case 'alone':
      return { ...alone(options, world, spec), secret };
    case 'address': {
      const server = meeting.hostedElsewhere ? 'elsewhere' : 'rank-0';
      const own = serverOf(environment) ?? options.rank ?? rank;
      const opened = await openTcp(meeting, { rank: own, worldSize, world, secret, server }, options);
      // Ranks that were restarted must not meet their predecessors' keys.
      return {
        ...opened,
        spec,
        store: meeting.hostedElsewhere ? new PrefixStore(opened.store, generationPrefix(spec.generation), true) : opened.store,
      };
    }
    case 'file': {
      const path = join(await privateDirectory(environment), meeting.name);
      return { ...(await openMeeting(path, { rank, worldSize, world, port: meeting.port }, options)), spec };
    }
  }
}

/** A parameter server has no rank. Its launcher says rank 0, which it would be taken for. */
function serverOf({ SHOAL_ROLE: role, SHOAL_SERVER: server }: Environment): number | undefined {
  return role === 'server' || role === 'standby' ? serverNumber + Number(server) : undefined;
}

/** The part of a launcher's store that belongs to one generation of ranks. */
export function generationPrefix(generation: number): string {
  return `generation-${generation}`;
}

function alone(options: OpenStoreOptions, world: string, spec: WorldSpec | undefined): OpenedStore {
  return { store: new HashStore(options), servedBy: undefined, secret: encode(options.secret ?? ''), world, url: undefined, spec };
}

async function openTcp(address: { host: string; port: number }, seat: Seat, options: OpenStoreOptions): Promise<OpenedStore> {
  const { host, port } = address;
  const { rank, worldSize, world, secret, server } = seat;
  const { clock, random, settings } = options;
  if (secret.length === 0 && !isLoopback(host) && options.insecure !== 'allow') {
    const message = `${partyName(rank)}: the job meets at ${host}:${port}, which other hosts can reach, and has no secret; set SHOAL_SECRET to the same random text on every rank, or SHOAL_INSECURE=1`;
    throw new ShoalError('auth', message, { rank });
  }
  const url = `tcp://${host.includes(':') ? `[${host}]` : host}:${port}`;
  if (server === 'elsewhere' || rank !== 0) {
    const servedBy = server === 'rank-0' ? 0 : undefined;
    const store = await StoreClient.connect({ ...clientOptions(options), host, port, rank, worldSize, world, secret, servedBy });
    return { store, servedBy, secret, world, url, spec: undefined };
  }
  // A host name may resolve to a loopback address on the host itself, where the others could not connect.
  const bind = isLoopback(host) ? { host: host === 'localhost' ? '127.0.0.1' : host } : { host: 'any' };
  const listening = await StoreServer.listen({ clock, random, settings, secret, world, worldSize, port, ...bind, keepProcessAlive: 'no' });
  return { store: new ServedStore(listening, options), servedBy: 0, secret, world, url, spec: undefined };
}

async function openMeeting(
  path: string,
  seat: { rank: number; worldSize: number; world: string; port: number },
  options: OpenStoreOptions,
): Promise<OpenedStore> {
  const { rank, worldSize, world, port } = seat;
  const { clock, random, settings } = options;
  if (rank !== 0) {
    const { store, point } = await joinMeeting(path, { ...clientOptions(options), rank, worldSize, world, servedBy: 0 });
    return { store, servedBy: 0, secret: point.secret, world, url: `tcp://${point.host}:${point.port}`, spec: undefined };
  }
  const { server, point, leave } = await serveMeeting(path, { clock, random, settings, world, worldSize, port, keepProcessAlive: 'no' });
  return {
    store: new ServedStore(server, { ...options, leave }),
    servedBy: 0,
    secret: point.secret,
    world,
    url: `tcp://${point.host}:${point.port}`,
    spec: undefined,
  };
}

function clientOptions(
  options: OpenStoreOptions,
): Pick<OpenStoreOptions, 'clock' | 'random' | 'network' | 'settings' | 'timeoutMs' | 'connectTimeoutMs' | 'signal'> {
  const { clock, random, network, settings, timeoutMs, connectTimeoutMs, signal } = options;
  return { clock, random, network, settings, timeoutMs, connectTimeoutMs, signal };
}

function encode(secret: string | Uint8Array): Uint8Array {
  return typeof secret === 'string' ? new TextEncoder().encode(secret) : secret;
}

/** The serving rank's client: its end is the end of the store, so it waits a little for the others. */
class ServedStore extends HashStore {
  readonly #server: StoreServer;
  readonly #lingerMs: number;
  readonly #leave: (() => Promise<void>) | undefined;

  constructor(server: StoreServer, options: OpenStoreOptions & { leave?: () => Promise<void> }) {
    super({ clock: options.clock, timeoutMs: options.timeoutMs, table: server.table });
    this.#server = server;
    this.#lingerMs = options.lingerMs ?? 2000;
    this.#leave = options.leave;
  }

  override async close(): Promise<void> {
    await super.close();
    await this.#server.drained(this.#lingerMs);
    await this.#server.close();
    await this.#leave?.();
  }
}
