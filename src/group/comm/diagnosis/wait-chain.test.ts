/** Timeouts of ranks that wait for ranks that wait: who is named. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../../../base/clock.ts';
import { decorateFabric, ForwardingConnection } from '../../../fabric/testing/hooks/decorate.ts';
import { answerMs } from './inquiry.ts';
import { startRanks } from '../../testing/in-process-world.ts';
import type { ProcessGroup } from '../../caller/types.ts';

const limitMs = 1000;
const longMs = 60_000;

/** Long enough for everything to arrive that has been sent. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 30; turn++) await new Promise(setImmediate);
}

/** Three ranks; `stop` makes one of them as silent as a process that has got SIGSTOP. */
async function startThree(clock: VirtualClock): Promise<{ groups: readonly ProcessGroup[]; stop: (rank: number) => void }> {
  let stopped = -1;
  const { groups } = await startRanks(3, {
    clock,
    wrap: (fabric, rank) =>
      decorateFabric(fabric, (connection) => {
        class Stoppable extends ForwardingConnection {
          override send(message: Uint8Array): Promise<void> {
            return rank === stopped ? Promise.resolve() : super.send(message);
          }
        }
        return new Stoppable(connection);
      }),
  });
  return { groups, stop: (rank) => (stopped = rank) };
}

/** An answer of another rank than the one in question. */
function unheeded(call: PromiseLike<unknown>): void {
  Promise.resolve(call).catch(() => undefined);
}

const buffer = (): Float32Array => new Float32Array(4);

describe('a chain of ranks that receive', () => {
  it('names the one that waits for nobody, and says what each of the others waits in', async () => {
    const clock = new VirtualClock();
    const { groups } = await startThree(clock);
    const calls = [groups[0].recv(buffer(), 1, { timeoutMs: limitMs }), groups[1].recv(buffer(), 2, { timeoutMs: longMs })];
    await delivered();
    clock.advance(limitMs);
    for (const call of calls) {
      await expect(call).rejects.toMatchObject({ code: 'timeout', peer: 2 });
      await expect(call).rejects.toThrow(
        /recv float32\[4\] from rank 1 with tag 0 timed out after 1000 ms: rank 1 did not send; rank 1 itself waits for rank 2 in recv float32\[4\] from rank 2 with tag 0; rank 2 waits for nobody/,
      );
    }
  });

  it('names the one that does not answer', async () => {
    const clock = new VirtualClock();
    const { groups, stop } = await startThree(clock);
    const call = groups[0].recv(buffer(), 1, { timeoutMs: limitMs });
    unheeded(groups[1].recv(buffer(), 2, { timeoutMs: longMs }));
    stop(2);
    await delivered();
    clock.advance(limitMs);
    await delivered();
    clock.advance(answerMs);
    await expect(call).rejects.toMatchObject({ code: 'timeout', peer: 2, message: expect.stringMatching(/rank 2 does not answer/) });
  });

  it('leads through a collective', async () => {
    const clock = new VirtualClock();
    const { groups } = await startThree(clock);
    const call = groups[0].recv(buffer(), 1, { timeoutMs: limitMs });
    for (const rank of [0, 1]) unheeded(groups[rank].allReduce(buffer(), { timeoutMs: longMs }));
    await delivered();
    clock.advance(limitMs);
    await expect(call).rejects.toMatchObject({
      code: 'timeout',
      peer: 2,
      message: expect.stringMatching(/rank 1 itself waits for rank 2 in all-reduce #0/),
    });
  });

  it('that is a circle names the neighbour', async () => {
    const clock = new VirtualClock();
    const { groups } = await startThree(clock);
    const call = groups[0].recv(buffer(), 1, { timeoutMs: limitMs });
    unheeded(groups[1].recv(buffer(), 0, { timeoutMs: longMs }));
    await delivered();
    clock.advance(limitMs);
    await expect(call).rejects.toMatchObject({
      code: 'timeout',
      peer: 1,
      message: expect.stringMatching(/rank 1 itself waits for rank 0/),
    });
  });

  it('that is a circle names the neighbour, also where that waits for another rank, which waits for nobody', async () => {
    const clock = new VirtualClock();
    const { groups } = await startThree(clock);
    const call = groups[0].recv(buffer(), 1, { timeoutMs: limitMs });
    // Rank 1 does what the others do not.
    unheeded(groups[1].allReduce(buffer(), { timeoutMs: longMs }));
    await delivered();
    clock.advance(limitMs);
    await expect(call).rejects.toMatchObject({
      code: 'timeout',
      peer: 1,
      message: expect.stringMatching(/rank 1 itself waits for rank 0, 2 in all-reduce #0 .*; rank 2 waits for nobody/),
    });
  });

  it('is of no interest once the message has come', async () => {
    const clock = new VirtualClock();
    const { groups, stop } = await startThree(clock);
    const received = buffer();
    const call = groups[0].recv(received, 1, { timeoutMs: limitMs });
    stop(1);
    await delivered();
    clock.advance(limitMs);
    await delivered();
    stop(-1);
    const sent = groups[1].send(Float32Array.of(1, 2, 3, 4), 0);
    await Promise.all([call, sent]);
    expect([...received]).toEqual([1, 2, 3, 4]);
  });
});

describe('a group that does not open', () => {
  it('names the rank that does not answer, not the one that waits for it', async () => {
    const clock = new VirtualClock();
    const { groups, stop } = await startThree(clock);
    const opening = groups.map((group) => group.newGroup([0, 1, 2], { timeoutMs: limitMs }));
    // All have made the call; one is stopped before it opens what they agreed on.
    const [first, second] = opening;
    unheeded(opening[2]);
    stop(2);
    await delivered();
    clock.advance(limitMs);
    await delivered();
    clock.advance(answerMs);
    const error = { code: 'timeout', peer: 2, message: expect.stringMatching(/did not open/) };
    await Promise.all([first, second].map((call) => expect(call).rejects.toMatchObject(error)));
  });
});
