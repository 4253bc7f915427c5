/** Receives over the connections of one link: asked for again over each next one, answered once, failed when there will be none. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import type { TensorCarrier } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { FusedWaiter, SlotOutcome } from '../../rendezvous/protocol/tensor-carrier.ts';
import type { Cancel } from '../../rendezvous/table/rendezvous.ts';
import { LinkTensors } from './link-tensors.ts';

const stats = () => ({ calls: 0, bytesSent: 0, bytesReceived: 0 });
const value = (x: number): SlotOutcome => ({ value: { dtype: 'float32', shape: [], data: Float32Array.of(x) } });
const lost = new ShoalError('peer-lost', 'gone');

/** Answers when the test says so; with its connection it fails what it was asked. */
class FakeCarrier implements TensorCarrier {
  readonly description = 'fake';
  readonly asked: { keys: readonly string[]; waiter: FusedWaiter; isCancelled: boolean }[] = [];

  recv: TensorCarrier['recv'] = (stepId, key, { receive, fail }) =>
    this.recvFused(stepId, [key], {
      fail,
      receive: ([outcome]) => ('cause' in outcome ? fail(outcome.cause) : receive(outcome.value)),
    });

  recvFused(_stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    const asked = { keys, waiter, isCancelled: false };
    this.asked.push(asked);
    return () => {
      asked.isCancelled = true;
    };
  }

  endStep(): void {}

  async close(): Promise<void> {
    for (const { waiter } of this.asked) waiter.fail(lost);
  }
}

describe('receives over the connections of a link', () => {
  it('are asked for again over the next connection, in their order, and answered once', async () => {
    const counted = stats();
    let wanted = 0;
    const tensors = new LinkTensors('/job:ps/task:0', counted, () => void wanted++);
    const [first, second] = [new FakeCarrier(), new FakeCarrier()];
    const early = tensors.receive(1, ['early']);
    expect(wanted).toBe(1);
    tensors.attach(first);
    const fused = tensors.receive(1, ['x', 'y']);
    const each: unknown[] = [];
    const some = tensors.receiveEach(
      [
        [1, 'a'],
        [2, 'b'],
      ],
      (index) => each.push(index),
    );
    first.asked[3].waiter.receive([value(4)]);
    expect(wanted).toBe(1);
    tensors.detach();
    expect(wanted).toBe(2);
    await first.close();
    const between = tensors.receive(3, ['between']);
    tensors.attach(second);
    expect(second.asked.map(({ keys }) => keys)).toEqual([['early'], ['x', 'y'], ['a'], ['between']]);
    // Nobody waits there any more.
    first.asked[0].waiter.receive([value(9)]);
    second.asked.forEach(({ waiter, keys }) => waiter.receive(keys.map((_, k) => value(k))));
    expect((await Promise.all([early, fused, between])).map((slots) => slots.length)).toEqual([1, 2, 1]);
    await some;
    expect(each).toEqual([1, 0]);
    expect(counted.calls).toBe(4);
    // Nothing is asked for over a connection that nobody needs.
    wanted = 0;
    tensors.detach();
    expect(wanted).toBe(0);
  });

  it('fail when there will be no other connection, also those that come later', async () => {
    const tensors = new LinkTensors('/job:ps/task:0', stats(), () => {});
    const { signal } = new AbortController();
    tensors.attach(new FakeCarrier());
    const waiting = [tensors.receive(1, ['x'], signal), tensors.receive(1, ['y', 'z'])].map((each) => expect(each).rejects.toBe(lost));
    const slots: unknown[] = [];
    const some = tensors.receiveEach([[1, 'a']], (_, slot) => slots.push(slot));
    tensors.fail(lost);
    await Promise.all([...waiting, some]);
    await expect(tensors.receive(1, ['x'], signal)).rejects.toBe(lost);
    await tensors.receiveEach([[1, 'b']], (_, slot) => slots.push(slot));
    expect(slots).toEqual([lost, lost]);
  });

  it('are cancelled one by one', async () => {
    const tensors = new LinkTensors('/job:ps/task:0', stats(), () => {});
    const carrier = new FakeCarrier();
    tensors.attach(carrier);
    const abort = new AbortController();
    const [first, second] = [tensors.receive(1, ['x'], abort.signal), tensors.receive(1, ['y'])];
    abort.abort();
    await expect(first).rejects.toMatchObject({ code: 'aborted' });
    expect(carrier.asked.map(({ isCancelled }) => isCancelled)).toEqual([true, false]);
    carrier.asked[1].waiter.receive([value(1)]);
    expect(await second).toHaveLength(1);
  });
});
