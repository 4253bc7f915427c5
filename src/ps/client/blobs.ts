/** Features and gradients that workers of a split network pass to their neighbours: from any worker to any other, in the
 *  order sent, by name. Each process takes blobs at one router and sends through a dealer per destination process.
 *
 *      frame 0   format `ss`: name, dtype       frame 1   elements, little-endian */
import { getOrMake } from '../../base/collections/lists.ts';
import type { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType, type TypedArray } from '../../memory/dtype.ts';
import { idOf, makeAddress, type Address } from '../../messaging/address.ts';
import { Dealer } from '../../messaging/dealer.ts';
import { Msg } from '../../messaging/msg.ts';
import { Router } from '../../messaging/router.ts';
import { MessageType, Role } from '../protocol/singa.ts';
import type { NodeContext } from '../job/node-context.ts';
import { BlobBox, type BlobData } from '../values/blob-box.ts';

/** Blobs that nobody has asked for yet, bytes per process. */
const waitingBytesMax = 256 * 2 ** 20;
const connectMs = 30_000;

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
  /** Boxes by worker of this process. */
  readonly #boxes: readonly BlobBox[];
  readonly #closing = new AbortController();

  private constructor(node: NodeContext, workers: { firstWorker: number; localWorkers: number }) {
    this.#node = node;
    this.#firstWorker = workers.firstWorker;
    this.#localWorkers = workers.localWorkers;
    this.#router = new Router(node.messaging);
    this.#boxes = Array.from({ length: workers.localWorkers }, (_, local) => {
      return new BlobBox({ clock: node.clock, waitingMax: Infinity, owner: `worker ${workers.firstWorker + local} ` });
    });
  }

  /** @param workers `id`: the number in the process's address. */
  static async open(node: NodeContext, workers: { firstWorker: number; localWorkers: number; id: number }): Promise<Blobs> {
    const blobs = new Blobs(node, workers);
    const url = await blobs.#router.bind(node.bindUrl);
    blobs.#router.watch(() => blobs.#drain());
    const record = { url, ...node.processes.own() };
    for (const id of new Set([workers.firstWorker, workers.id])) await node.records.publishClient(id, record);
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
    const before = this.#waitingBytes();
    const taken = this.#boxes[to - this.#firstWorker].take(from, wanted.name, wanted.timeoutMs);
    if (this.#waitingBytes() < before) this.#drain();
    return taken;
  }

  async close(reason: ShoalError): Promise<void> {
    this.#closing.abort(reason);
    for (const box of this.#boxes) box.close(reason);
    const dealers = await Promise.allSettled(this.#dealers.values());
    await Promise.all(dealers.map(async (dealer) => (dealer.status === 'fulfilled' ? dealer.value.close() : 0)));
    await this.#router.close();
  }

  #dealerTo(first: number): Promise<Dealer> {
    return getOrMake(this.#dealers, first, () => {
      const dealer = this.#dial(first);
      dealer.catch(() => this.#dealers.delete(first));
      return dealer;
    });
  }

  async #dial(first: number): Promise<Dealer> {
    const { signal } = this.#closing;
    const { messaging, records, settings } = this.#node;
    let dealer: Dealer | undefined;
    const giveUp = (): void => void dealer?.close({ timeoutMs: 0 });
    signal.addEventListener('abort', giveUp);
    try {
      const { url } = await records.client(first, { timeoutMs: settings.timeoutMs, signal });
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
    while (!this.#closing.signal.aborted && this.#waitingBytes() < waitingBytesMax) {
      const msg = this.#router.tryReceive();
      if (msg === undefined) return;
      const blob = decode(msg);
      if (blob !== undefined) this.#arrive(blob);
    }
  }

  #arrive({ from, to, name, values }: Arrival): void {
    this.#boxes[to - this.#firstWorker]?.put(from, name, values);
  }

  #waitingBytes(): number {
    return this.#boxes.reduce((sum, { bytes }) => sum + bytes, 0);
  }
}

/** Decodes a blob; undefined for a message that is none. */
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
