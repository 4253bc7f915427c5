/** `fabric://`: packets over connections of the data plane (fabric-pipe.ts). The fabric is the caller's and only for messaging: a context
 *  listens on it once. URLs hold its address: `fabric://shm/3?world=job&at=shm%3A%2F%2F…` is rank 3. */
import { ShoalError } from '../../../base/errors.ts';
import type { Connection, Fabric, FabricAddress, PeerIdentity } from '../../../fabric/fabric.ts';
import { loadNative } from '../../../memory/native.ts';
import type { RegionAllocator } from '../../../memory/region.ts';
import { createRegionAllocator } from '../../../memory/regions/allocator.ts';
import type { Backend, BackendOptions, Listener, Pipe, PipeConnectOptions } from '../../backend.ts';
import { packetBytesMost } from '../../limits.ts';
import { FabricPipe, landingLeast, type FabricPipeOptions } from './fabric-pipe.ts';
import type { FramePlaces } from './frame-places.ts';

/** The data plane that messages go over. */
export interface FabricEndpoint {
  /** A fabric that only messaging uses. The context does not close it. */
  readonly fabric: Fabric;
  /** This process's identity on it, with which the fabric was made. */
  readonly identity: PeerIdentity;
  /** Makes landing regions, of the kind the fabric needs. Default: the best of this host. */
  readonly regions?: RegionAllocator;
  /** Large received frames are copied out of registered memory, or lent until `msg.release()`; when many are lent
   *  already, further ones are copied. Default `copy`. */
  readonly landing?: 'copy' | 'borrow';
  /** Registered memory per connection that receives large frames. Default 16 MiB, taken when the
   *  first one comes. */
  readonly landingBytes?: number;
}

const defaultLandingBytes = 16 * 2 ** 20;
export interface FabricBackendOptions extends BackendOptions {
  readonly fabric?: FabricEndpoint;
  /** Memory that peers may write to, over that fabric. */
  readonly places?: FramePlaces;
}

/** @throws ShoalError `usage` without a fabric. */
export async function createFabricBackend(options: FabricBackendOptions): Promise<Backend> {
  const { fabric, places } = options;
  if (fabric === undefined || places === undefined)
    throw new ShoalError('usage', 'fabric:// needs a fabric: give the messaging context the option fabric');
  return new FabricBackend(options, fabric, places);
}

class FabricBackend implements Backend {
  readonly #endpoint: FabricEndpoint;
  readonly #pipeOptions: FabricPipeOptions;
  readonly #pipes = new Set<FabricPipe>();
  #onPipe: ((pipe: Pipe) => void) | undefined;
  #url: string | undefined;

  constructor(options: BackendOptions, endpoint: FabricEndpoint, places: FramePlaces) {
    this.#endpoint = endpoint;
    const { landing = 'copy', landingBytes = defaultLandingBytes } = endpoint;
    if (!Number.isSafeInteger(landingBytes) || landingBytes < landingLeast) {
      throw new ShoalError('usage', `landingBytes ${landingBytes} must be an integer from ${landingLeast}`);
    }
    const regions = endpoint.regions ?? createRegionAllocator({ native: loadNative({ enabled: true }) });
    this.#pipeOptions = {
      lends: landing === 'borrow',
      landingBytes,
      regions,
      fabric: endpoint.fabric,
      clock: options.clock,
      packetBytes: packetBytesMost(options.limits),
      places,
    };
  }

  async listen(url: string, onPipe: (pipe: Pipe) => void): Promise<Listener> {
    const { fabric } = this.#endpoint;
    if (url !== `fabric://${fabric.name}`)
      throw new ShoalError('usage', `'${url}': this context's fabric is bound as fabric://${fabric.name}`);
    if (this.#onPipe !== undefined) throw new ShoalError('system', `${url} is bound already; a fabric listens once`);
    this.#onPipe = onPipe;
    this.#url ??= await this.#listenOnce();
    return {
      url: this.#url,
      close: async () => {
        this.#onPipe = undefined;
      },
    };
  }

  async connect(url: string, { timeoutMs, signal }: PipeConnectOptions): Promise<Pipe> {
    const { provider, world, rank, candidates } = parseFabricUrl(url);
    const { fabric } = this.#endpoint;
    if (provider !== fabric.name) throw new ShoalError('usage', `'${url}' needs the fabric ${provider}; this context has ${fabric.name}`);
    const connection = await fabric.connect({ provider, candidates }, { peer: { world, rank }, timeoutMs, signal });
    return this.#open(connection);
  }

  async close(): Promise<void> {
    this.#onPipe = undefined;
    await Promise.all([...this.#pipes].map((pipe) => pipe.close(0)));
  }

  async #listenOnce(): Promise<string> {
    const { fabric, identity } = this.#endpoint;
    const address = await fabric.listen((connection) => {
      const pipe = this.#open(connection);
      // No router is bound at the moment: the peer comes again later.
      if (this.#onPipe === undefined) pipe.close(0).catch(() => undefined);
      else this.#onPipe(pipe);
    });
    const query = new URLSearchParams({ world: identity.world });
    for (const candidate of address.candidates) query.append('at', candidate);
    return `fabric://${address.provider}/${identity.rank}?${query.toString()}`;
  }

  #open(connection: Connection): FabricPipe {
    const pipe = new FabricPipe(connection, this.#pipeOptions, () => this.#pipes.delete(pipe));
    this.#pipes.add(pipe);
    return pipe;
  }
}

function parseFabricUrl(url: string): PeerIdentity & FabricAddress {
  const match = /^fabric:\/\/([\w;-]+)\/(\d{1,10})\?(.+)$/.exec(url);
  const query = new URLSearchParams(match?.[3] ?? '');
  const world = query.get('world');
  const candidates = query.getAll('at');
  if (match === null || world === null || candidates.length === 0) {
    throw new ShoalError('usage', `'${url}' is not what binding fabric:// returned, like fabric://shm/3?world=job&at=…`);
  }
  return { provider: match[1], rank: Number(match[2]), world, candidates };
}
