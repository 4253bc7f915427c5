/** Parameter servers and their workers as roles of a world: the real ones, over a network of the world. */
import { seededRandom } from '../../src/base/random.ts';
import { readSettings, type Environment } from '../../src/base/settings/settings.ts';
import { LoopbackNetwork, type LoopbackFabric } from '../../src/fabric/testing/loopback.ts';
import { InProcessMemory } from '../../src/group/testing/in-process-memory.ts';
import type { NodeContext } from '../../src/ps/job/node-context.ts';
import { ServerRecords } from '../../src/ps/job/server-records.ts';
import { ServerNode } from '../../src/ps/server/server-node.ts';
import { openInlineStore } from '../../src/kvstore/testing/inline-store.ts';
import type { KVStore } from '../../src/kvstore/calls/types.ts';
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { loadNative } from '../../src/memory/native.ts';
import { createParameterKernels } from '../../src/memory/parameter-kernels/create-parameter-kernels.ts';
import type { RegionAllocator } from '../../src/memory/region.ts';
import { MessagingContext } from '../../src/messaging/context.ts';
import { openStore } from '../../src/store/open-store.ts';
import type { VirtualNetwork } from '../../src/store/testing/virtual-network.ts';
import type { VirtualHost, VirtualProcess } from './virtual-host.ts';

const native = loadNative({ enabled: true });
const kernels = createKernels({ native });
const parameterKernels = createParameterKernels({ native });

/** Shared by servers and workers: a network for their messages, and memory. */
export class ServerSite {
  readonly #host: VirtualHost;
  readonly #streams: VirtualNetwork;
  readonly #network: LoopbackNetwork;
  readonly #memory = new InProcessMemory();
  readonly #fabrics = new Map<number, LoopbackFabric>();

  constructor(host: VirtualHost, streams: VirtualNetwork) {
    this.#host = host;
    this.#streams = streams;
    this.#network = new LoopbackNetwork((pid, callback) => host.roleOf(pid).turn(callback));
  }

  get left(): string[] {
    return [
      ...(this.#network.size > 0 ? [`${this.#network.size} listeners of servers and workers`] : []),
      ...(this.#memory.size > 0 ? [`${this.#memory.size} regions of servers and workers`] : []),
    ];
  }

  /** Breaks a connection of this process. False when it has none. */
  cut(pid: number, index: number): boolean {
    const { connections = [] } = this.#fabrics.get(pid) ?? {};
    if (connections.length === 0) return false;
    connections[index % connections.length].abort();
    return true;
  }

  /** Serves until all workers have left. */
  async serve(process: VirtualProcess): Promise<void> {
    const stopped = new AbortController();
    process.onTerminate = () => stopped.abort();
    try {
      const node = await ServerNode.start(process.environment, { signal: stopped.signal, open: () => this.#open(process) });
      const stop = (): void => void node.stop();
      if (stopped.signal.aborted) stop();
      else stopped.signal.addEventListener('abort', stop, { once: true });
      if ((await node.ended) === 'replaced') process.exit(1);
    } catch (thrown) {
      if (!stopped.signal.aborted) throw thrown;
    }
  }

  connect(process: VirtualProcess): Promise<KVStore> {
    const { environment } = process;
    const open = (): Promise<NodeContext> => this.#open(process);
    return openInlineStore({ environment, allocator: this.#allocator(process), kernels, parameterKernels, open, turn: process.role.turn });
  }

  async #open(process: VirtualProcess): Promise<NodeContext> {
    const { role, pid } = process;
    const { clock } = role;
    const environment: Environment = process.environment;
    const settings = readSettings(environment);
    const random = seededRandom(pid);
    const { timeoutMs, connectTimeoutMs } = settings;
    const opened = await openStore('env://', { clock, random, network: this.#streams.of(role), environment, timeoutMs, connectTimeoutMs });
    const identity = { world: `${opened.world}/kvstore`, rank: pid };
    const allocator = this.#allocator(process);
    const fabric = this.#network.createFabric({ identity, secret: opened.secret, clock, random, regions: allocator });
    this.#fabrics.set(pid, fabric);
    role.onEnd(() => fabric.crash((queued) => random.integer(queued)));
    const messaging = new MessagingContext({
      world: identity.world,
      secret: opened.secret,
      clock,
      random,
      fabric: { fabric, identity, regions: allocator },
    });
    return {
      clock,
      random,
      settings,
      records: new ServerRecords(opened.store),
      messaging,
      allocator,
      kernels,
      parameterKernels,
      processes: this.#host.processesOf(pid),
      bindUrl: `fabric://${fabric.name}`,
      close: async () => {
        await messaging.close();
        await fabric.close();
        await opened.store.close();
      },
    };
  }

  #allocator(process: VirtualProcess): RegionAllocator {
    process.role.onEnd(() => this.#memory.forget(process.pid));
    return this.#memory.allocator(process.pid);
  }
}
