/** Features and gradients that workers of a split network pass to their neighbours: from any worker to any other, in the
 *  order sent, by name. Each process takes blobs at one router and sends through a dealer per destination process.
 *
 *      frame 0   format `ss`: name, dtype       frame 1   elements, little-endian */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { idOf, makeAddress, Role, type Address } from '../../messaging/address.ts';
import { Dealer } from '../../messaging/dealer.ts';
import { MessageType, Msg } from '../../messaging/msg.ts';
import { Router } from '../../messaging/router.ts';
import type { NodeContext } from '../job/node-context.ts';
import type { BlobData } from './protocol.ts';

/** Blobs that nobody has asked for yet, bytes per process. */
const waitingBytesMax = 256 * 2 ** 20;
const connectMs = 30_000;

interface Waiting {
  readonly arrived: TypedArray[];
  readonly askers: { resolve(values: TypedArray): void; reject(error: ShoalError): void }[];
}

interface Arrival {
  readonly from: number;
  readonly to: number;
  readonly name: string;
  readonly values: TypedArray;
}

export class Blobs {
  readonly #node: NodeContext;
  readonly #firstWorker: number;
  readonly #localWorkers: number;
  readonly #router: Router;
  readonly #dealers = new Map<number, Promise<Dealer>>();
  readonly #waiting = new Map<string, Waiting>();
  #waitingBytes = 0;
  readonly #closing = new AbortController();

  private constructor(node: NodeContext, workers: { firstWorker: number; localWorkers: number }) {
    this.#node = node;
    this.#firstWorker = workers.firstWorker;
    this.#localWorkers = workers.localWorkers;
    this.#router = new Router(node.messaging);
  }

  static async open(node: NodeContext, workers: { firstWorker: number; localWorkers: number }): Promise<Blobs> {
    const blobs = new Blobs(node, workers);
    const url = await blobs.#router.bind(node.bindUrl);
    blobs.#router.watch(() => blobs.#drain());
    await node.records.publishClient(workers.firstWorker, url);
    return blobs;
  }

  /** Resolves when the other process has it. */
  async send(from: number, to: number, blob: BlobData): Promise<void> {
    const { name, dtype, values, kind } = blob;
    const first = to - (to % this.#localWorkers);
    if (first === this.#firstWorker) {
      this.#arrive({ from, to, name, values });
      return;
    }
    const msg = new Msg(workerAddress(from), workerAddress(to));
    msg.type = kind === 'feature' ? MessageType.featureBlob : MessageType.gradientBlob;
    msg.addFormatFrame('ss', name, dtype);
    msg.addFrame(values);
    const dealer = await this.#dealerTo(first);
    dealer.send(msg);
    await dealer.flushed();
  }

  receive(from: number, to: number, wanted: { name: string; timeoutMs: number }): Promise<TypedArray> {
    const { name, timeoutMs } = wanted;
    const key = keyOf(from, to, name);
    const waiting = this.#waitingFor(key);
    const values = waiting.arrived.shift();
    if (values !== undefined) {
      this.#waitingBytes -= values.byteLength;
      this.#forgetIdle(key, waiting);
      this.#drain();
      return Promise.resolve(values);
    }
    return new Promise((resolve, reject) => {
      const asker = {
        resolve: (arrived: TypedArray) => {
          timer.cancel();
          resolve(arrived);
        },
        reject: (error: ShoalError) => {
          timer.cancel();
          reject(error);
        },
      };
      const timer = this.#node.clock.setTimer(timeoutMs, () => {
        waiting.askers.splice(waiting.askers.indexOf(asker), 1);
        this.#forgetIdle(key, waiting);
        const message = `worker ${to} waited ${timeoutMs} ms for blob '${name}' of worker ${from}; does it call sendBlob?`;
        reject(new ShoalError('timeout', message, { timeoutMs }));
      });
      waiting.askers.push(asker);
    });
  }

  async close(reason: ShoalError): Promise<void> {
    this.#closing.abort(reason);
    for (const { askers } of this.#waiting.values()) for (const { reject } of askers.splice(0)) reject(reason);
    const dealers = await Promise.allSettled(this.#dealers.values());
    await Promise.all(dealers.map(async (dealer) => (dealer.status === 'fulfilled' ? dealer.value.close() : 0)));
    await this.#router.close();
  }

  #dealerTo(first: number): Promise<Dealer> {
    let dealer = this.#dealers.get(first);
    if (dealer === undefined) {
      dealer = this.#dial(first);
      this.#dealers.set(first, dealer);
      dealer.catch(() => this.#dealers.delete(first));
    }
    return dealer;
  }

  async #dial(first: number): Promise<Dealer> {
    const { signal } = this.#closing;
    const { messaging, records, settings } = this.#node;
    let dealer: Dealer | undefined;
    const giveUp = (): void => void dealer?.close({ timeoutMs: 0 });
    signal.addEventListener('abort', giveUp);
    try {
      const url = await records.clientUrl(first, { timeoutMs: settings.timeoutMs, signal });
      signal.throwIfAborted();
      dealer = new Dealer(messaging, { address: makeAddress({ group: 0, id: this.#firstWorker, role: Role.workerLayer }) });
      await dealer.connect(url, { timeoutMs: connectMs });
      return dealer;
    } catch (error) {
      await dealer?.close({ timeoutMs: 0 });
      throw signal.aborted ? signal.reason : error;
    } finally {
      signal.removeEventListener('abort', giveUp);
    }
  }

  /** Takes what has arrived while there is room; the rest stays where it is and stops its senders. */
  #drain(): void {
    while (!this.#closing.signal.aborted && this.#waitingBytes < waitingBytesMax) {
      const msg = this.#router.tryReceive();
      if (msg === undefined) return;
      const blob = decode(msg);
      if (blob !== undefined) this.#arrive(blob);
    }
  }

  #arrive({ from, to, name, values }: Arrival): void {
    const waiting = this.#waitingFor(keyOf(from, to, name));
    const asker = waiting.askers.shift();
    if (asker !== undefined) {
      asker.resolve(values);
      this.#forgetIdle(keyOf(from, to, name), waiting);
      return;
    }
    this.#waitingBytes += values.byteLength;
    waiting.arrived.push(values);
  }

  #waitingFor(key: string): Waiting {
    let waiting = this.#waiting.get(key);
    if (waiting === undefined) {
      waiting = { arrived: [], askers: [] };
      this.#waiting.set(key, waiting);
    }
    return waiting;
  }

  /** Names may be made per step; none is kept for nothing. */
  #forgetIdle(key: string, waiting: Waiting): void {
    if (waiting.arrived.length + waiting.askers.length === 0) this.#waiting.delete(key);
  }
}

/** Undefined for what is no blob. */
function decode(msg: Msg): Arrival | undefined {
  try {
    const [name, dtype] = msg.parseFormatFrame('ss') as [string, DType];
    if (!msg.nextFrame()) return undefined;
    const bytes = Uint8Array.from(msg.frameData());
    const info = dtypeInfo(dtype);
    if (bytes.byteLength % info.bytes !== 0) return undefined;
    const values = info.view(bytes.buffer, 0, bytes.byteLength / info.bytes);
    return { from: idOf(msg.source), to: idOf(msg.destination), name, values };
  } catch {
    return undefined;
  }
}

function workerAddress(worker: number): Address {
  return makeAddress({ group: 0, id: worker, role: Role.workerLayer });
}

function keyOf(from: number, to: number, name: string): string {
  return `${from} ${to} ${name}`;
}
