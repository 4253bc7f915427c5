/** Receives from one task by calls of it, for carriers that have nothing better (gRPC): one answer for the tensors of one request, whose
 *  elements are slices of it; or a stream of what is ready. */
import { ShoalError } from '../../base/errors.ts';
import type { RpcLink, TensorSource } from '../rpc/rpc.ts';
import type { Value } from '../structure/value.ts';
import { decodeMessage, encodeMessage } from '../wire/graphs.ts';
import type { Slot } from '../wire/values.ts';
import { parse } from '../../base/schema.ts';
import { Method, someSchema } from './methods.ts';

export class TensorCalls implements TensorSource<Value> {
  readonly #task: string;
  readonly #link: RpcLink;

  constructor(task: string, link: RpcLink) {
    this.#task = task;
    this.#link = link;
  }

  async receive(stepId: number, keys: readonly string[], signal?: AbortSignal): Promise<readonly Slot[]> {
    const answer = await this.#link.call(Method.recvTensor, encodeMessage({ stepId, keys }), { ...(signal && { signal }) });
    const { values } = decodeMessage(answer);
    if (values.length !== keys.length)
      throw new ShoalError('protocol', `${this.#task} answered ${values.length} tensors for ${keys.length} keys`);
    return values;
  }

  async receiveEach(items: readonly (readonly [number, string])[], onSlot: (index: number, slot: Slot) => void): Promise<void> {
    let failed: unknown;
    const onPart = (body: Uint8Array): void => {
      try {
        this.#take(body, items.length, onSlot);
      } catch (thrown) {
        failed ??= thrown;
      }
    };
    await this.#link.call(Method.recvSome, encodeMessage({ items }), { onPart });
    if (failed !== undefined) throw failed;
  }

  #take(body: Uint8Array, count: number, onSlot: (index: number, slot: Slot) => void): void {
    const { fields, values } = decodeMessage(body);
    const { items: indexes } = parse(`an answer of ${this.#task}`, someSchema, fields);
    if (indexes.length !== values.length || indexes.some((index) => index >= count))
      throw new ShoalError('protocol', `${this.#task} answered what was not asked`);
    indexes.forEach((index, k) => onSlot(index, values[k]));
  }
}
