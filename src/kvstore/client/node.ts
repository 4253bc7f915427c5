/** The client of a process: the thread through which its workers reach the servers. Around the client core it has a link to each
 *  server, and channels to the workers, which are threads of this process.
 *
 *      worker ── channel ──┐                     ┌── link ──▶ server 0
 *      worker ── channel ──┼──▶ core (one) ──────┼── link ──▶ server 1
 *                          └──▶ blobs ───────────┴── dealers ──▶ other processes */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { detectWorld } from '../../store/environment.ts';
import type { TypedArray } from '../../memory/dtype.ts';
import type { Address } from '../../messaging/address.ts';
import { ThreadGate } from '../../messaging/thread-gate.ts';
import { Blobs } from './blobs.ts';
import type { GradientCodec } from '../compression/codec.ts';
import { createCodec } from '../compression/registry.ts';
import { detectPlace } from '../job/environment.ts';
import { openNode, type NodeContext } from '../job/node-context.ts';
import { ProcessValues } from '../protocol/process-values.ts';
import { ServerLink } from '../job/server-link.ts';
import { endProcess } from '../job/server-process.ts';
import { ClientCore } from './core.ts';
import type { Done, TransferEntry } from './options.ts';
import type { BatchEntry, ClientAnswer, ClientCommand, ClientEvent, ClientPlan, ClientTicket, WorkerInfo } from './protocol.ts';
import { serverAddress, serverGroupOf, clientAddress, workerGroupOf, type KVTopology } from '../protocol/topology.ts';

const closeMs = 2000;

export class ClientNode {
  readonly #node: NodeContext;
  readonly #topology: KVTopology;
  readonly #firstWorker: number;
  readonly #values: ProcessValues;
  readonly #core: ClientCore;
  readonly #links = new Map<Address, ServerLink>();
  readonly #blobs: Blobs;
  readonly #channels = new Set<WorkerChannel>();

  private constructor(node: NodeContext, parts: { topology: KVTopology; firstWorker: number; localWorkers: number; blobs: Blobs }) {
    const { topology, firstWorker, localWorkers, blobs } = parts;
    const { clock, kernels, parameterKernels, allocator, settings } = node;
    this.#node = node;
    this.#topology = topology;
    this.#firstWorker = firstWorker;
    this.#blobs = blobs;
    this.#values = new ProcessValues({
      allocator,
      // Beyond the numbers of the workers' threads.
      thread: localWorkers,
      onCreate: () => undefined,
      onDrop: (region) => this.#core.forgetRegion(region),
    });
    const workerGroup = workerGroupOf(topology, firstWorker);
    this.#core = new ClientCore({
      topology,
      workerGroup,
      firstWorker,
      localWorkers,
      clock,
      kernels,
      parameterKernels,
      values: this.#values,
      send: (server, msg) => this.#links.get(server)?.send(msg),
      timeoutMs: settings.timeoutMs,
      replayBytes: settings.replayBytes,
      creditBytes: settings.creditBytes,
      sliceBytes: settings.valueSliceBytes,
    });
    const own = clientAddress(workerGroup, firstWorker);
    const group = serverGroupOf(topology, workerGroup);
    for (let server = 0; server < topology.serversPerGroup; server++) {
      const link = new ServerLink({
        node,
        group,
        server,
        own,
        to: serverAddress(group, server),
        onMessage: (msg) => this.#core.receive(msg),
        onUp: () => this.#core.serverUp(server),
        onDown: (error) => this.#core.serverDown(server, error),
        // It may have been stopped while it wrote here.
        onReplaced: (former) => endProcess(node.clock, former),
      });
      this.#links.set(serverAddress(group, server), link);
    }
  }

  /** @throws ShoalError `config`, `mismatch` when workers disagree, `timeout`, `auth`. */
  static async start({ environment, async, localWorkers, gate }: ClientPlan): Promise<ClientNode> {
    const { topology } = detectPlace(environment, { async, localWorkers });
    const firstWorker = detectWorld(environment, { parentPid: process.ppid }).rank * localWorkers;
    const node = await openNode(environment, { gate: new ThreadGate(gate) });
    try {
      await node.records.agree(topology);
      const blobs = await Blobs.open(node, { firstWorker, localWorkers });
      return new ClientNode(node, { topology, firstWorker, localWorkers, blobs });
    } catch (error) {
      await node.close();
      throw error;
    }
  }

  /** A worker's thread, from now on. */
  attach(ticket: ClientTicket): void {
    const worker = this.#firstWorker + ticket.local;
    const info: WorkerInfo = { worker, workerGroup: workerGroupOf(this.#topology, worker), topology: this.#topology };
    const channel = new WorkerChannel(ticket, (command) => this.#handle(channel, worker, command));
    this.#channels.add(channel);
    channel.emit({ type: 'ready', info });
  }

  #handle(channel: WorkerChannel, worker: number, command: ClientCommand): void {
    const core = this.#core;
    switch (command.type) {
      case 'map':
        this.#values.adopt(command.region, command.share);
        return;
      case 'unmap':
        core.forgetRegion(command.region);
        this.#values.release(command.region);
        return;
      case 'attach':
        this.attach(command.ticket);
        return;
      case 'compression':
        channel.codec = createCodec(command.spec, this.#node.parameterKernels);
        return;
      case 'batch':
        channel.batches.set(command.batch, entriesOf(command.entries, channel.codec));
        return;
      case 'forget-batch':
        channel.batches.delete(command.batch);
        return;
      case 'init':
        core.init(worker, command.entries, channel.done(command.work));
        return;
      case 'transfer': {
        const { entries, priority, timeoutMs, work } = command;
        const list =
          typeof entries === 'number'
            ? must(channel.batches.get(entries), () => `batch ${entries} was given before`)
            : entriesOf(entries, channel.codec);
        core.transfer(worker, { entries: list, priority, ...(timeoutMs === undefined ? {} : { timeoutMs }) }, channel.done(work));
        return;
      }
      case 'rows':
        if (command.direction === 'push') core.rowSparsePush(worker, command.request, channel.done(command.work));
        else core.rowSparsePull(worker, command.request, channel.done(command.work));
        return;
      case 'barrier':
        core.barrier(worker, channel.done(command.work));
        return;
      case 'optimizer':
        core.setOptimizer(worker, command.spec, channel.done(command.work));
        return;
      case 'state':
        if (command.direction === 'save') core.saveState(worker, command.folder, channel.done(command.work));
        else core.loadState(worker, command.folder, channel.done(command.work));
        return;
      case 'info':
        core.info(worker, command.key, (error, info) => channel.settle(command.work, error, info));
        return;
      case 'send-blob':
        channel.answer(
          command.work,
          this.#blobs.send(worker, command.worker, command.blob).then(() => undefined),
        );
        return;
      case 'receive-blob':
        channel.answer(command.work, this.#blobs.receive(command.worker, worker, command));
        return;
      case 'close':
        void this.#leave(channel, worker, command.work);
    }
  }

  /** The last worker of the process takes the connections with it. */
  async #leave(channel: WorkerChannel, worker: number, work: number): Promise<void> {
    const error = await new Promise<ShoalError | undefined>((resolve) => this.#core.leave(worker, resolve));
    this.#channels.delete(channel);
    if (this.#channels.size === 0) await this.#close();
    channel.settle(work, error);
    channel.close();
  }

  async #close(): Promise<void> {
    const closed = new ShoalError('closed', 'the store was closed');
    this.#core.close(closed);
    await this.#blobs.close(closed);
    await Promise.all([...this.#links.values()].map((link) => link.close(closeMs)));
    this.#values.close();
    await this.#node.close();
  }
}

/** The client's end of a worker's channel. */
class WorkerChannel {
  codec: GradientCodec | undefined;
  readonly batches = new Map<number, readonly TransferEntry[]>();
  readonly #ticket: ClientTicket;
  readonly #posted: Int32Array;

  constructor(ticket: ClientTicket, handle: (command: ClientCommand) => void) {
    this.#ticket = ticket;
    this.#posted = new Int32Array(ticket.events);
    ticket.port.on('message', (command: ClientCommand) => {
      try {
        handle(command);
      } catch (thrown) {
        const error = ShoalError.from(thrown);
        if ('work' in command) this.settle(command.work, error);
        else this.emit({ type: 'failed', error: error.toData() });
      }
    });
  }

  emit(event: ClientEvent): void {
    this.#ticket.port.postMessage(event);
    Atomics.add(this.#posted, 0, 1);
    Atomics.notify(this.#posted, 0);
  }

  settle(work: number, error: ShoalError | undefined, answer?: ClientAnswer): void {
    this.emit({
      type: 'done',
      work,
      ...(error === undefined ? {} : { error: error.toData() }),
      ...(answer === undefined ? {} : { answer }),
    });
  }

  /** When all channels are closed, nothing keeps the client thread from ending. */
  close(): void {
    this.#ticket.port.close();
  }

  done(work: number): Done {
    return (error) => this.settle(work, error);
  }

  answer(work: number, result: Promise<TypedArray | undefined>): void {
    result.then(
      (values) => this.settle(work, undefined, values),
      (thrown: unknown) => this.settle(work, ShoalError.from(thrown)),
    );
  }
}

function entriesOf(entries: readonly BatchEntry[], codec: GradientCodec | undefined): readonly TransferEntry[] {
  if (codec === undefined) return entries;
  return entries.map((entry) => (entry.encoding === 'compressed' ? { ...entry, codec } : entry));
}
