/** Steps begin and end; requests that come first wait for their step, up to a bound; what comes late fails at once. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { formatRendezvousKey } from './rendezvous-key.ts';
import { StepTable } from './step-table.ts';

const ps = '/job:ps/task:0/device:CPU:0';
const key = (name: string, incarnation = 1n): string =>
  formatRendezvousKey({ sendDevice: ps, incarnation, recvDevice: '/job:worker/task:0/device:CPU:0', name, frame: 0, iteration: 0 });

/** A waiter, and what it was told. */
function waiter(): { told: unknown[]; receive: (value: string | undefined) => void; fail: (cause: ShoalError) => void } {
  const told: unknown[] = [];
  return { told, receive: (value) => told.push(value), fail: ({ code }) => told.push(code) };
}

describe('a table of steps', () => {
  it('parks what comes before its step, and serves it when the step begins and the key is sent', () => {
    const table = new StepTable<string>();
    const [early, later] = [waiter(), waiter()];
    table.take(7, key('a'), early);
    table.take(8, key('a'), later);
    expect(table.parked).toBe(2);
    table.begin(7).send(key('a'), 'seven');
    expect([early.told, later.told, table.parked]).toEqual([['seven'], [], 1]);
    table.begin(8).send(key('a'), 'eight');
    expect(later.told).toEqual(['eight']);
  });

  it('forgets what is cancelled, parked or waiting, and takes the key again', () => {
    const table = new StepTable<string>();
    const [first, second, third] = [waiter(), waiter(), waiter()];
    table.take(7, key('a'), first)();
    expect(table.parked).toBe(0);
    const cancel = table.take(7, key('a'), second);
    const step = table.begin(7);
    cancel();
    cancel();
    table.take(7, key('a'), third);
    step.send(key('a'), 'x');
    expect([first.told, second.told, third.told]).toEqual([[], [], ['x']]);
  });

  it('parks no more than it may', () => {
    const table = new StepTable<string>({ parkedMax: 1 });
    const [first, second] = [waiter(), waiter()];
    table.take(7, key('a'), first);
    table.take(8, key('a'), second);
    expect(second.told).toEqual(['out-of-memory']);
    table.begin(7);
    table.take(8, key('a'), second);
    expect(table.parked).toBe(1);
  });

  it('holds no more steps than it may, and begins none twice', () => {
    const table = new StepTable<string>({ stepsMax: 1 });
    table.begin(1);
    expect(() => table.begin(1)).toThrow('step 1 has begun already');
    expect(() => table.begin(2)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    table.end(1);
    expect(() => table.begin(1)).toThrow('step 1 cannot begin: step 1 has ended');
    table.begin(2);
    expect(table.size).toBe(1);
    for (const bad of [-1, 0.5, 2 ** 53, Number.NaN]) expect(() => table.begin(bad)).toThrow(/no step id/);
  });

  it('fails what waits, what is parked and what comes late with the cause of the abort', async () => {
    const table = new StepTable<string>({ endedMax: 2 });
    const [waiting, parked, late, much] = [waiter(), waiter(), waiter(), waiter()];
    const step = table.begin(1);
    table.take(1, key('a'), waiting);
    table.take(2, key('a'), parked);
    for (const stepId of [1, 2]) table.abort(stepId, new ShoalError('timeout', 'too late'));
    table.take(1, key('b'), late);
    expect([waiting.told, parked.told, late.told]).toEqual([['timeout'], ['timeout'], ['timeout']]);
    await expect(step.recvAsync(key('c'))).rejects.toThrow('too late');
    expect(() => table.begin(2)).toThrow('step 2 cannot begin: too late');
    table.end(3);
    table.take(1, key('b'), much);
    expect(much.told, 'only the last two are remembered').toEqual([]);
  });

  it('ends all steps when it is closed', () => {
    const table = new StepTable<string>();
    const [waiting, parked, late] = [waiter(), waiter(), waiter()];
    table.begin(1);
    table.take(1, key('a'), waiting);
    table.take(2, key('a'), parked);
    table.close(new ShoalError('closed', 'the worker is closed'));
    table.take(3, key('a'), late);
    expect([waiting.told, parked.told, late.told]).toEqual([['closed'], ['closed'], ['closed']]);
    expect(() => table.begin(4)).toThrow('the worker is closed');
  });

  it('refuses keys of another incarnation of a device, and of devices that are elsewhere', () => {
    const table = new StepTable<string>({ incarnations: (device) => (device === ps ? 2n : undefined) });
    const step = table.begin(1);
    const [old, other] = [waiter(), waiter()];
    table.take(1, key('a', 1n), old);
    table.take(1, key('a', 2n).replaceAll('ps', 'chief'), other);
    expect([old.told, other.told]).toEqual([['mismatch'], ['usage']]);
    expect(() => step.send(key('a', 1n), 'x')).toThrow(
      /incarnation 0000000000000001 of .*, which is now 0000000000000002: its process has restarted/,
    );
    step.send(key('a', 2n), 'x');
  });
});

describe('a tensor that another worker was given', () => {
  const given = (keeps: boolean, prepare?: (value: string) => string) => {
    const steps = new StepTable<string>({ keeps, ...(prepare && { prepare }) });
    const ask = (asker: { worker: object; isOver: boolean }) => {
      const asked = waiter();
      const cancel = steps.take(1, key('x'), asked, asker);
      return { told: asked.told, cancel };
    };
    return { steps, step: steps.begin(1), ask };
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
    steps.end(1);
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
