/** RecvTensor over one connection of a fabric, both ways: the two state machines, their shared state, and the connection. It belongs to
 *  the thread that made the fabric. */
import { ShoalError } from '../../base/errors.ts';
import { settled } from '../../base/microtask.ts';
import { ownProcess, type ProcessIdentity } from '../../base/files/process-identity.ts';
import { abortConnection } from '../../fabric/abortable.ts';
import type { Connection } from '../../fabric/fabric.ts';
import { Arbiter, type CreditAccount, type SharedResource } from '../../scheduler/arbiter.ts';
import { tensorCounters, type TensorCounters } from '../protocol/counters.ts';
import { Outbox } from '../protocol/outbox.ts';
import { ByteReader } from '../../base/bytes.ts';
import { nameBytesMax, RecordType } from '../protocol/records.ts';
import type { StandingRequest } from '../protocol/standing-request.ts';
import { TensorReceiver, type TensorReceiverOptions } from '../protocol/tensor-receiver.ts';
import type { FusedWaiter, PieceSink, TensorCarrier, Unanswered } from '../protocol/tensor-carrier.ts';
import { bytesOf } from '../protocol/tensor-request.ts';
import type { Staging } from '../protocol/piece-writer.ts';
import { TensorSender, type TensorSenderOptions } from '../protocol/tensor-sender.ts';
import type { Asker, Cancel, Waiter } from '../table/rendezvous.ts';
import type { Release, TensorValue } from '../value/tensor-value.ts';

/** A worker, as its first message says. */
export interface WorkerIdentity {
  /** Its number among the workers of the job, by which `peer` finds it. */
  readonly rank: number;
  /** The device that its tensors are sent from: `/job:ps/task:0/device:CPU:0`. */
  readonly device: string;
  /** A number of this start of the process. */
  readonly incarnation: bigint;
}

export interface TensorConnectionOptions
  extends
    Pick<TensorReceiverOptions, 'memory' | 'clock' | 'timeoutMs' | 'firstRequest'>,
    Pick<TensorSenderOptions, 'take' | 'giveBack' | 'onAnswered' | 'onSettled'> {
  readonly connection: Connection;
  readonly self: WorkerIdentity;
  /** Default: counters of its own. */
  readonly counters?: TensorCounters;
  /** Peer memory is mapped: announcing a write costs a message of its own. */
  readonly announcesApart: boolean;
  readonly limits?: Partial<TensorLimits>;
  /** The arbiter of all that this process sends. Default: one for this connection. */
  readonly arbiter?: Arbiter;
  /** The resource that tensors share with other traffic. Default: none. */
  readonly resource?: SharedResource;
  /** Default: at the end of the running microtasks. */
  readonly atEndOfTurn?: (callback: () => void) => void;
  onHello?(peer: WorkerIdentity, process: ProcessIdentity): void;
  /** Called once. @param error undefined after an orderly end.
   *  @returns what takes over the requests that are not answered. Default: they fail. */
  onClose?(error: ShoalError | undefined): ((asked: Unanswered) => void) | undefined;
}

export interface TensorLimits extends Pick<TensorSenderOptions, 'requestsMax' | 'namesMax' | 'regionsMax'> {
  /** Bytes of tensors on their way to the peer, at most; one larger part may be alone. */
  readonly creditBytes: number;
}

const defaultLimits: TensorLimits = { requestsMax: 65_536, namesMax: 65_536, regionsMax: 65_536, creditBytes: 16 * 2 ** 20 };

export class TensorConnection implements TensorCarrier, Asker {
  /** The worker at the other end. */
  worker: object = this;
  readonly counters: TensorCounters;
  readonly #options: TensorConnectionOptions;
  readonly #account: CreditAccount;
  readonly #outbox: Outbox;
  readonly #receiver: TensorReceiver;
  readonly #sender: TensorSender;
  #peer: WorkerIdentity | undefined;
  #closed = false;

  constructor(options: TensorConnectionOptions) {
    this.#options = options;
    const { connection, memory, announcesApart, counters = tensorCounters() } = options;
    this.counters = counters;
    const limits = { ...defaultLimits, ...options.limits };
    this.#account = (options.arbiter ?? new Arbiter()).open({
      creditBytes: () => limits.creditBytes,
      resource: options.resource,
      isDestination: true,
      onRoom: () => this.#outbox.pump(),
    });
    this.#outbox = new Outbox({
      counters,
      account: this.#account,
      atEndOfTurn: options.atEndOfTurn ?? ((flush) => void settled.then(flush)),
      wire: {
        announcesApart,
        send: (message) => this.#watch(connection.send(message)),
        write: (source, target, immediate, onDone) => this.#watch(connection.write(source, target, immediate), onDone),
        ...(connection.gather && { gather: (sources, target, onDone) => this.#watch(connection.gather!(sources, target), onDone) }),
      },
    });
    const shared = { ...options, ...limits, outbox: this.#outbox, counters };
    this.#receiver = new TensorReceiver({ ...shared, peer: () => this.description });
    this.#sender = new TensorSender({ ...shared, stage: (bytes) => this.#stage(bytes) });
    memory.onDeregister = (rkey) => this.#receiver.forget(rkey);
    connection.setHandlers({
      onMessage: (message) => this.#onMessage(message),
      onImmediate: (immediate) => this.#receiver.onImmediate(immediate),
      onClose: (error) => this.#onClose(error),
    });
    this.#sayHello();
  }

  get description(): string {
    const { connection } = this.#options;
    return `${this.#peer?.device ?? `worker ${connection.peer.rank}`} (${connection.description})`;
  }

  /** The connection has ended. */
  get isOver(): boolean {
    return this.#closed;
  }

  /** Requests that are not answered: of this side, and of the peer. */
  get unanswered(): { readonly here: number; readonly there: number } {
    return { here: this.#receiver.unanswered, there: this.#sender.unanswered };
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>, sink?: PieceSink): Cancel {
    return this.#receiver.recv(stepId, key, waiter, sink);
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    return this.#receiver.recvFused(stepId, keys, waiter);
  }

  stand(key: string, firstStep: number, depth: number): StandingRequest {
    return this.#receiver.stand(key, firstStep, depth);
  }

  endStep(stepId: number): void {
    this.#receiver.endStep(stepId);
  }

  async close(): Promise<void> {
    await this.#options.connection.close();
    this.#onClose(undefined);
  }

  /** Breaks the connection: the peer sees it as lost. */
  break(cause: ShoalError): void {
    abortConnection(this.#options.connection);
    this.#onClose(cause);
  }

  /** Closes at once: what is under way is lost. */
  abort(cause: ShoalError): void {
    void this.#options.connection.close(0);
    this.#onClose(cause);
  }

  #sayHello(): void {
    const { device, incarnation } = this.#options.self;
    const writer = this.#outbox.record(RecordType.Hello);
    writer.u64(incarnation);
    writer.text(device);
    const { pid, host, birth } = ownProcess();
    writer.u32(pid);
    writer.text(host);
    writer.varint(birth);
  }

  #onMessage(message: Uint8Array): void {
    if (this.#closed) return;
    const reader = new ByteReader(message, 'a control message');
    this.counters.messagesReceived++;
    if (!this.#outbox.onMessage(reader)) return;
    while (!reader.done && !this.#closed) {
      const type = reader.u8();
      if (type === RecordType.Hello) this.#onHello(reader);
      else if (this.#peer === undefined) throw new ShoalError('protocol', `a control message of type ${type} before hello`);
      else if (!this.#sender.onRecord(type, reader) && !this.#receiver.onRecord(type, reader))
        throw new ShoalError('protocol', `a control message has type ${type}, which there is not`);
    }
  }

  #onHello(reader: ByteReader): void {
    const incarnation = reader.u64();
    const device = reader.text(nameBytesMax);
    const process = { pid: reader.u32(), host: reader.text(nameBytesMax), birth: reader.varint() };
    if (this.#peer !== undefined) throw new ShoalError('protocol', 'the peer says hello twice');
    this.#peer = { rank: this.#options.connection.peer.rank, device, incarnation };
    this.#options.onHello?.(this.#peer, process);
  }

  #onClose(error: ShoalError | undefined): void {
    if (this.#closed) return;
    this.#closed = true;
    const takeOver = this.#options.onClose?.(error);
    const cause = error ?? new ShoalError('closed', `the connection to ${this.description} was closed`);
    this.#outbox.close(cause);
    this.#account[Symbol.dispose]();
    this.#sender.close(cause);
    this.#options.memory.close();
    this.#receiver.close(cause, takeOver);
  }

  /** The end of the connection tells of everything that is lost with it. */
  #watch(posted: Promise<void>, onDone: Release = () => undefined): void {
    posted.then(
      () => onDone(),
      (thrown: unknown) => {
        const error = ShoalError.from(thrown);
        onDone(error);
        if (this.#closed || error.code === 'peer-lost' || error.code === 'closed' || error.code === 'protocol') return;
        // Something was left out: what comes next would be in a wrong order.
        this.abort(error);
      },
    );
  }

  #stage(bytes: number): Staging {
    const { memory } = this.#options;
    const buffer = memory.allocate(bytes);
    return { bytes: bytesOf(buffer, bytes), release: () => memory.free(buffer) };
  }
}
