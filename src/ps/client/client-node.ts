/** The client of a process, through which its workers reach the servers: a guest of the comm thread. Around the client core it has a
 *  dialer for each server, and channels to the workers, which are threads of this process.
 *
 *      worker ── channel ──┐                     ┌── dialer ──▶ server 0
 *      worker ── channel ──┼──▶ core (one) ──────┼── dialer ──▶ server 1
 *                          └──▶ blobs ───────────┴── dealers ──▶ other processes */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { GuestPort, type CommThreadContext, type StartGuest } from '../../comm/thread/guest.ts';
import type { Arbiter } from '../../scheduler/arbiter.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { answerForWorker } from '../../metrics/worker-report.ts';
import { jobFailed, noteJoined } from '../../store/ended-ranks.ts';
import { detectWorld } from '../../store/environment.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Address } from '../../messaging/address.ts';
import { Blobs } from './blobs.ts';
import type { GradientCodec } from '../compression/codec.ts';
import { createCodec } from '../compression/registry.ts';
import { detectPlace } from '../job/environment.ts';
import { openNode, type NodeContext } from '../job/node-context.ts';
import { ProcessValues } from '../protocol/process-values.ts';
import { ServerDialer } from '../job/server-dialer.ts';
import { ClientCore } from './client-core.ts';
import type { ClientOptions, InfoDone, TransferEntry } from './client-options.ts';
import type { ClientCommand, ClientEvent, ClientPlan, WorkerInfo } from './commands.ts';
import { serverAddress, serverGroupOf, clientAddress, workerGroupOf, type KVTopology } from '../protocol/topology.ts';

const closeMs = 2000;

/** The client's end of a channel to a worker. */
export type WorkerPort = Pick<GuestPort<ClientCommand, ClientEvent>, 'onCommand' | 'emit' | 'settle' | 'close'>;

interface ClientSurroundings {
  readonly thread?: Pick<CommThreadContext, 'gate' | 'arbiter'>;
  /** Default: the system's. */
  readonly open?: (environment: Environment) => Promise<NodeContext>;
  /** The last worker of the process has left. */
  readonly onEnded: () => void;
}

interface ClientParts {
  readonly topology: KVTopology;
  readonly firstWorker: number;
  readonly localWorkers: number;
  readonly presence: ClientOptions['presence'];
  readonly blobs: Blobs;
  readonly arbiter: Arbiter | undefined;
  /** Ends the wait for a failure of the job. */
  readonly over: AbortController;
  readonly onEnded: () => void;
}

type Commands = {
  readonly [T in ClientCommand['type']]: (command: Extract<ClientCommand, { type: T }>, channel: WorkerChannel) => unknown;
};

export class ClientNode {
  readonly #node: NodeContext;
  readonly #parts: ClientParts;
  readonly #values: ProcessValues;
  readonly #core: ClientCore;
  readonly #dialers = new Map<Address, ServerDialer>();
  readonly #channels = new Set<WorkerChannel>();
  #closing: Promise<void> | undefined;
  /** Handlers of a worker's commands, by type. */
  readonly #commands: Commands = {
    map: ({ region, share }) => this.#values.adopt(region, share),
    unmap: ({ region }) => {
      this.#core.forgetRegion(region);
      this.#values.release(region);
    },
    attach: ({ ticket }) => this.attach(ticket.local, new GuestPort(ticket)),
    credit: ({ creditBytes }) => this.#core.setCredit(creditBytes),
    compression: ({ spec }, channel) => {
      channel.codec = createCodec(spec, this.#node.parameterKernels);
    },
    batch: ({ batch, entries }, { batches }) => batches.set(batch, entries),
    'forget-batch': ({ batch }, { batches }) => batches.delete(batch),
    init: ({ entries, work }, channel) => this.#core.init(channel.worker, entries, channel.done(work)),
    transfer: ({ entries: given, priority, timeoutMs, work }, channel) => {
      const { worker, codec, batches } = channel;
      const entries = typeof given === 'number' ? must(batches.get(given), () => `batch ${given} was given before`) : given;
      this.#core.transfer(worker, { entries, priority, timeoutMs, codec }, channel.done(work));
    },
    rows: ({ direction, request, work }, channel) => this.#core.rows(channel.worker, direction, request, channel.done(work)),
    barrier: ({ work }, channel) => this.#core.barrier(channel.worker, channel.done(work)),
    optimizer: ({ spec, work }, channel) => this.#core.setOptimizer(channel.worker, spec, channel.done(work)),
    state: ({ direction, folder, work }, channel) => this.#core.state(channel.worker, direction, folder, channel.done(work)),
    info: ({ key, work }, channel) => this.#core.info(channel.worker, key, channel.done(work)),
    'send-blob': ({ worker, blob, work }, channel) => channel.answer(work, this.#parts.blobs.send(channel.worker, worker, blob)),
    'receive-blob': (command, channel) => channel.answer(command.work, this.#parts.blobs.receive(command.worker, channel.worker, command)),
    close: ({ work }, channel) => this.#leave(channel, work),
  };

  private constructor(node: NodeContext, parts: ClientParts) {
    const { topology, firstWorker, localWorkers, presence, arbiter } = parts;
    const { timeoutMs, replayBytes, creditBytes, valueSliceBytes: sliceBytes } = node.settings;
    this.#node = node;
    this.#parts = parts;
    this.#values = new ProcessValues({
      allocator: node.allocator,
      // Beyond the numbers of the workers' threads.
      thread: localWorkers,
      onCreate: () => undefined,
      onDrop: (region) => this.#core.forgetRegion(region),
      places: node.messaging.places,
    });
    const workerGroup = workerGroupOf(topology, firstWorker);
    this.#core = new ClientCore({
      ...node,
      ...{ topology, workerGroup, firstWorker, localWorkers, presence, timeoutMs, replayBytes, creditBytes, sliceBytes },
      ...(arbiter && { arbiter }),
      values: this.#values,
      send: (server, msg) => this.#dialers.get(server)?.send(msg),
    });
    const own = clientAddress(workerGroup, presence?.id ?? firstWorker);
    const group = serverGroupOf(topology, workerGroup);
    for (let server = 0; server < topology.serversPerGroup; server++) {
      const dialer = new ServerDialer({
        node,
        group,
        server,
        own,
        onMessage: (msg) => this.#core.receive(msg),
        // Values of a server that sees our memory do not pass the network.
        onUp: (record) => this.#core.serverUp(server, node.processes.isHere(record) ? 'memory' : 'network'),
        onDown: (error, how) => (how === 'refused' ? this.#core.fail(error) : this.#core.serverDown(server, error, how)),
        // It may have been stopped while it wrote here.
        onReplaced: (former) => node.processes.end(node.clock, former),
      });
      this.#dialers.set(serverAddress(group, server), dialer);
    }
  }

  /** @throws ShoalError `config`, `mismatch` when workers disagree, `timeout`, `auth`. */
  static async start(
    { environment, async, localWorkers }: ClientPlan,
    { thread, onEnded, open = (given) => openNode(given, thread) }: ClientSurroundings,
  ): Promise<ClientNode> {
    const { topology, elastic } = detectPlace(environment, { async, localWorkers });
    // One that is started again has a rank of its own, and the place of the lost one.
    const { RANK: ownRank, LOCAL_RANK: localRank } = environment;
    const joins = elastic && readSettings(environment).join;
    const variables = joins ? { ...environment, RANK: localRank } : environment;
    const { rank: place, worldSize } = detectWorld(variables, { parentPid: process.ppid });
    const rank = joins ? Number(ownRank) : place;
    const firstWorker = place * localWorkers;
    const presence = elastic ? { id: rank * localWorkers, joins } : undefined;
    const node = await open(variables);
    const over = new AbortController();
    const failed = jobFailed(node.records.store, rank, over.signal);
    failed.catch(() => undefined);
    try {
      await node.records.agree(topology);
      if (topology.replicas === 2) {
        const group = serverGroupOf(topology, workerGroupOf(topology, firstWorker));
        await Promise.race([failed, node.records.doubled(group, topology.serversPerGroup, node.settings.connectTimeoutMs)]);
      }
      const blobs = await Blobs.open(node, { firstWorker, localWorkers, id: presence?.id ?? firstWorker });
      const client = new ClientNode(node, {
        topology,
        firstWorker,
        localWorkers,
        presence,
        blobs,
        arbiter: thread?.arbiter,
        over,
        onEnded,
      });
      answerForWorker(node.records.store, { group: 'kvstore', rank, size: worldSize }, () => client.#core.facts(), over.signal);
      if (joins) await noteJoined(node.records.store, rank);
      failed.catch((thrown: unknown) => client.#core.fail(ShoalError.from(thrown)));
      return client;
    } catch (error) {
      over.abort();
      await node.close();
      throw error;
    }
  }

  /** A worker's thread, from now on. @param local 0…localWorkers − 1. */
  attach(local: number, port: WorkerPort): void {
    const { firstWorker, topology } = this.#parts;
    const worker = firstWorker + local;
    const info: WorkerInfo = { worker, workerGroup: workerGroupOf(topology, worker), topology };
    const channel = new WorkerChannel(worker, port, (command) => this.#handle(command, channel));
    this.#channels.add(channel);
    port.emit({ type: 'ready', info });
  }

  /** Ends the client without asking the workers. */
  async end(): Promise<void> {
    await this.#close();
    for (const { port } of this.#channels) port.close();
  }

  #handle(command: ClientCommand, channel: WorkerChannel): void {
    const act = this.#commands[command.type] as (command: ClientCommand, channel: WorkerChannel) => void;
    act(command, channel);
  }

  /** The last worker of the process takes the connections with it. */
  async #leave(channel: WorkerChannel, work: number): Promise<void> {
    const error = await new Promise<ShoalError | undefined>((resolve) => this.#core.leave(channel.worker, resolve));
    this.#channels.delete(channel);
    if (this.#channels.size === 0) await this.#close();
    channel.port.settle(work, error);
    channel.port.close();
    if (this.#channels.size === 0) this.#parts.onEnded();
  }

  #close(): Promise<void> {
    this.#closing ??= this.#shutDown();
    return this.#closing;
  }

  async #shutDown(): Promise<void> {
    const closed = new ShoalError('closed', 'the store was closed');
    this.#parts.over.abort();
    this.#core.close(closed);
    await this.#parts.blobs.close(closed);
    await Promise.all([...this.#dialers.values()].map((dialer) => dialer.close(closeMs)));
    this.#values.close();
    await this.#node.close();
  }
}

/** The client as a guest of the comm thread. */
export const startGuest: StartGuest<ClientCommand, ClientEvent> = async ({ plan, port, thread, left }) => {
  const node = await ClientNode.start(plan as ClientPlan, { thread, onEnded: left });
  node.attach(0, port);
  return node;
};

/** The client's end of a worker's channel. */
class WorkerChannel {
  readonly worker: number;
  readonly port: WorkerPort;
  codec: GradientCodec | undefined;
  readonly batches = new Map<number, readonly TransferEntry[]>();

  constructor(worker: number, port: WorkerPort, handle: (command: ClientCommand) => void) {
    this.worker = worker;
    this.port = port;
    port.onCommand((command) => {
      try {
        handle(command);
      } catch (thrown) {
        const error = ShoalError.from(thrown);
        if ('work' in command) port.settle(command.work, error);
        else port.emit({ type: 'failed', error: error.toData() });
      }
    });
  }

  done(work: number): InfoDone {
    return (error, answer) => this.port.settle(work, error, answer);
  }

  answer(work: number, result: Promise<TypedArray | void>): void {
    result.then(
      (values) => this.port.settle(work, undefined, values ?? undefined),
      (thrown: unknown) => this.port.settle(work, ShoalError.from(thrown)),
    );
  }
}
