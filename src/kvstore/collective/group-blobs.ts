/** Blobs between the ranks of a process group: a header, then the elements, both under one tag.
 *
 *    bytes   0      1        2            4                12
 *            │ kind │ dtype  │ name bytes │ elements, f64 │ name, UTF-8 … │
 *            │ u8   │ u8     │ u16 LE     │ LE            │ up to 500     │      512 bytes, always
 *
 *  A receiver takes a sender's next blob, of any name, while a caller waits for one of that sender; blobs that no caller waits for are
 *  kept. */
import { Layout, textOf } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import { dtypeInfo, dtypes, type TypedArray } from '../../memory/dtype.ts';
import type { BlobBox, BlobData } from '../../ps/values/blob-box.ts';

const nameBytesMax = 500;
const headerLayout = new Layout('a blob', { kind: 'u8', dtype: 'u8', nameBytes: 'u16', elements: 'f53', name: nameBytesMax });
const tag = 0xb10b;
/** An asker's own timeout ends its wait; the reception stays. */
const receptionMs = 0x7fffffff;

export class GroupBlobs {
  readonly #group: ProcessGroup;
  readonly #box: BlobBox;
  /** Senders whose next blob is being received. */
  readonly #receiving = new Set<number>();

  constructor(group: ProcessGroup, box: BlobBox) {
    this.#group = group;
    this.#box = box;
  }

  async send(worker: number, { kind, name, dtype, values }: BlobData): Promise<void> {
    const text = new TextEncoder().encode(name);
    if (text.length > nameBytesMax) {
      throw new ShoalError('usage', `the name of a blob has ${text.length} bytes, more than ${nameBytesMax}`);
    }
    if (worker === this.#group.rank) {
      this.#box.put(worker, name, values);
      return;
    }
    const header = headerLayout.encode({
      kind: kind === 'feature' ? 0 : 1,
      dtype: dtypeInfo(dtype).code,
      nameBytes: text.length,
      elements: values.length,
      name: text,
    });
    // Both are begun before either is awaited: nothing of another blob comes between them.
    await Promise.all([this.#group.send(header, worker, { tag }), this.#group.send(values, worker, { tag })]);
  }

  receive(worker: number, name: string, timeoutMs: number): Promise<TypedArray> {
    const taken = this.#box.take(worker, name, timeoutMs);
    if (worker === this.#group.rank || this.#receiving.has(worker) || !this.#box.isWaiting(worker)) return taken;
    this.#receiving.add(worker);
    this.#receiveFrom(worker).then(
      () => this.#receiving.delete(worker),
      (error: unknown) => {
        this.#receiving.delete(worker);
        this.#box.fail(worker, ShoalError.from(error));
      },
    );
    return taken;
  }

  async #receiveFrom(worker: number): Promise<void> {
    while (this.#box.isWaiting(worker)) {
      const header = new Uint8Array(headerLayout.bytes);
      await this.#group.recv(header, worker, { tag, timeoutMs: receptionMs });
      const { dtype, nameBytes, elements: count, name } = headerLayout.decode(header);
      const info = dtypes[dtype];
      if (info === undefined || nameBytes > nameBytesMax) {
        throw new ShoalError('protocol', `worker ${worker} sent a blob that cannot be read`);
      }
      const values = info.view(new ArrayBuffer(count * info.bytes), 0, count);
      await this.#group.recv(values, worker, { tag, timeoutMs: receptionMs });
      this.#box.put(worker, textOf(name.subarray(0, nameBytes)), values);
    }
  }
}
