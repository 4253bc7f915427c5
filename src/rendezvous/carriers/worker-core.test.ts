/** Steps begin and end; requests that come first wait for their step, up to a bound; what comes late fails at once. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { formatRendezvousKey } from '../table/rendezvous-key.ts';
import { dense } from './conformance.ts';
import { WorkerCore, type WorkerCoreOptions } from './worker-core.ts';

const ps = '/job:ps/task:0/device:CPU:0';
const key = (name: string, incarnation = 1n): string =>
  formatRendezvousKey({ sendDevice: ps, incarnation, recvDevice: '/job:worker/task:0/device:CPU:0', name, frame: 0, iteration: 0 });

/** A waiter, and what it was told. */
function waiter(): { told: unknown[]; receive: (value: string | undefined) => void; fail: (cause: ShoalError) => void } {
  const told: unknown[] = [];
  return { told, receive: (value) => told.push(value), fail: ({ code }) => told.push(code) };
}

/** A worker whose values are texts. */
function coreOf(options: Partial<WorkerCoreOptions<string, string>> = {}, incarnation = 1n): WorkerCore<string, string> {
  const values = { check: (value: string) => value, received: (value: string) => value };
  return new WorkerCore({ rank: 0, device: ps, incarnation }, { values, ...options });
}

describe('the steps of a worker', () => {
  it('parks what comes before its step, and serves it when the step begins and the key is sent', () => {
    const core = coreOf();
    const [early, later] = [waiter(), waiter()];
    core.take(7, key('a'), early);
    core.take(8, key('a'), later);
    expect(core.parked).toBe(2);
    core.beginStep(7).send(key('a'), 'seven');
    expect([early.told, later.told, core.parked]).toEqual([['seven'], [], 1]);
    core.beginStep(8).send(key('a'), 'eight');
    expect(later.told).toEqual(['eight']);
  });

  it('forgets what is cancelled, parked or waiting, and takes the key again', () => {
    const core = coreOf();
    const [first, second, third] = [waiter(), waiter(), waiter()];
    core.take(7, key('a'), first)();
    expect(core.parked).toBe(0);
    const cancel = core.take(7, key('a'), second);
    const step = core.beginStep(7);
    cancel();
    cancel();
    core.take(7, key('a'), third);
    step.send(key('a'), 'x');
    expect([first.told, second.told, third.told]).toEqual([[], [], ['x']]);
  });

  it('parks no more than it may', () => {
    const core = coreOf({ parkedMax: 1 });
    const [first, second] = [waiter(), waiter()];
    core.take(7, key('a'), first);
    core.take(8, key('a'), second);
    expect(second.told).toEqual(['out-of-memory']);
    core.beginStep(7);
    core.take(8, key('a'), second);
    expect(core.parked).toBe(1);
  });

  it('holds no more steps than it may, and begins none twice', () => {
    const core = coreOf({ stepsMax: 1 });
    core.beginStep(1);
    expect(() => core.beginStep(1)).toThrow('step 1 has begun already');
    expect(() => core.beginStep(2)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    core.endStep(1);
    expect(() => core.beginStep(1)).toThrow('step 1 cannot begin: step 1 has ended');
    core.beginStep(2);
    expect(() => core.beginStep(3)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    for (const bad of [-1, 0.5, 2 ** 53, Number.NaN]) expect(() => core.beginStep(bad)).toThrow(/no step id/);
  });

  it('fails what waits, what is parked and what comes late with the cause of the abort', async () => {
    const core = coreOf({ endedMax: 2 });
    const [waiting, parked, late, much] = [waiter(), waiter(), waiter(), waiter()];
    const step = core.beginStep(1);
    core.take(1, key('a'), waiting);
    core.take(2, key('a'), parked);
    for (const stepId of [1, 2]) core.endStep(stepId, new ShoalError('timeout', 'too late'));
    core.take(1, key('b'), late);
    expect([waiting.told, parked.told, late.told]).toEqual([['timeout'], ['timeout'], ['timeout']]);
    await expect(step.recvAsync(key('c'))).rejects.toThrow('too late');
    expect(() => core.beginStep(2)).toThrow('step 2 cannot begin: too late');
    core.endStep(3);
    core.take(1, key('b'), much);
    expect(much.told, 'only the last two are remembered').toEqual([]);
  });

  it('ends all steps when it is closed', () => {
    const core = coreOf();
    const [waiting, parked, late] = [waiter(), waiter(), waiter()];
    core.beginStep(1);
    core.take(1, key('a'), waiting);
    core.take(2, key('a'), parked);
    core.endSteps(new ShoalError('closed', 'the worker is closed'));
    core.take(3, key('a'), late);
    expect([waiting.told, parked.told, late.told]).toEqual([['closed'], ['closed'], ['closed']]);
    expect(() => core.beginStep(4)).toThrow('the worker is closed');
  });

  it('refuses keys of another incarnation of a device, and of devices that are elsewhere', () => {
    const core = coreOf({}, 2n);
    const step = core.beginStep(1);
    const [old, other] = [waiter(), waiter()];
    core.take(1, key('a', 1n), old);
    core.take(1, key('a', 2n).replaceAll('ps', 'chief'), other);
    expect([old.told, other.told]).toEqual([['mismatch'], ['usage']]);
    expect(() => step.send(key('a', 1n), 'x')).toThrow(
      /incarnation 0000000000000001 of .*, which is now 0000000000000002: its process has restarted/,
    );
    step.send(key('a', 2n), 'x');
  });
});

describe('a tensor that another worker was given', () => {
  const given = (keeps: boolean, prepare?: (value: string) => string) => {
    const steps = coreOf({ keeps, ...(prepare && { prepare }) });
    const ask = (asker: { worker: object; isOver: boolean }) => {
      const asked = waiter();
      const cancel = steps.take(1, key('x'), asked, asker);
      return { told: asked.told, cancel };
    };
    return { steps, step: steps.beginStep(1), ask };
  };
  const [worker, other] = [{}, {}];
  const over = (connection: { isOver: boolean }): void => void (connection.isOver = true);

  it.each([
    ['alive', 'value', 'value'],
    ['dead', undefined, undefined],
  ])('and is kept, is given again to the same worker when its connection has ended, and to nobody else (%s)', (_, value, expected) => {
    const { steps, step, ask } = given(true);
    step.send(key('x'), value);
    const [first, second, third] = Array.from({ length: 3 }, () => ({ worker, isOver: false }));
    expect(ask(first).told).toEqual([expected]);
    expect(ask(first).told).toEqual(['usage']);
    expect(ask(second).told).toEqual(['usage']);
    over(first);
    expect(ask({ worker: other, isOver: false }).told).toEqual(['usage']);
    expect(ask(second).told).toEqual([expected]);
    over(second);
    expect(ask(third).told).toEqual([expected]);
    steps.endStep(1);
    over(third);
    expect(ask({ worker, isOver: false }).told).toEqual(['aborted']);
  });

  it('and is not kept, is given again when it has come back, and else is lost', () => {
    const { steps, step, ask } = given(false);
    step.send(key('x'), 'value');
    const [first, second, third] = Array.from({ length: 3 }, () => ({ worker, isOver: false }));
    expect(ask(first).told).toEqual(['value']);
    over(first);
    expect(steps.giveBack(1, key('x'), 'value')).toBe(true);
    expect(ask(second).told).toEqual(['value']);
    over(second);
    expect(ask(third).told).toEqual(['peer-lost']);
    expect([steps.giveBack(1, key('y'), 'value'), steps.giveBack(2, key('x'), 'value')]).toEqual([false, false]);
  });

  it('is waited for anew when it was not sent yet', () => {
    const { step, ask } = given(true);
    const first = ask({ worker, isOver: true });
    first.cancel();
    const second = ask({ worker, isOver: false });
    step.send(key('x'), 'value');
    expect([first.told, second.told]).toEqual([[], ['value']]);
  });

  it('and cannot be made ready for that, says so', () => {
    const { step, ask } = given(true, () => {
      throw new ShoalError('unsupported', 'no elements');
    });
    step.send(key('x'), 'value');
    expect(ask({ worker, isOver: false }).told).toEqual(['unsupported']);
  });
});

it('a fused receive that cannot read one of its tensors gives the others back', async () => {
  const core = new WorkerCore({ rank: 0, device: '/job:worker/task:0/device:CPU:0', incarnation: 1n });
  const step = core.beginStep(1);
  const [x, y] = ['x', 'y'].map((name) => core.key(name, core.self, core.self));
  let released = 0;
  step.send(x, { ...dense([1, 2]), release: () => void released++ });
  const read = (): Promise<void> => Promise.reject(new ShoalError('system', 'the device is lost'));
  step.send(y, { dtype: 'float32', shape: [1], bytes: 4, read, release: () => void released++ });
  await expect(step.recvFused([x, y])).rejects.toMatchObject({ code: 'system', message: expect.stringContaining('slot 1 of 2') as string });
  await expect.poll(() => released).toBe(2);
});
