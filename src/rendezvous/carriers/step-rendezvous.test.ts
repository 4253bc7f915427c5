/** Each key is sent once and received once; what waits is told when the step ends; the table has a bound. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { formatRendezvousKey } from '../table/rendezvous-key.ts';
import { StepRendezvous } from './step-rendezvous.ts';

const ps = '/job:ps/task:0/device:CPU:0';
const key = (name: string): string =>
  formatRendezvousKey({ sendDevice: ps, incarnation: 1n, recvDevice: '/job:worker/task:0/device:CPU:0', name, frame: 0, iteration: 0 });
const [x, y] = ['x', 'y'];

describe('a rendezvous', () => {
  it('gives what is sent, before or after it is asked for', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 4 });
    meeting.send(key('a'), x);
    const later = meeting.recvAsync(key('b'));
    expect(meeting.awaited).toEqual([key('b')]);
    meeting.send(key('b'), undefined);
    expect(await meeting.recvAsync(key('a'))).toBe(x);
    expect(await later).toBeUndefined();
    expect(meeting.awaited).toEqual([]);
  });

  it('gives several keys to one request when all are there, dead ones slot by slot', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 4 });
    const fused = meeting.recvFused([key('a'), key('b'), key('c')]);
    let done = false;
    void fused.then(() => (done = true));
    meeting.send(key('c'), y);
    meeting.send(key('a'), x);
    await Promise.resolve();
    expect(done).toBe(false);
    meeting.send(key('b'), undefined);
    expect(await fused).toEqual([x, undefined, y]);
    expect(meeting.requests).toBe(1);
  });

  it('drops what a request has got that fails as a whole, and what it still gets', async () => {
    const dropped: string[] = [];
    const meeting = new StepRendezvous<string>(1, { keysMax: 4, onDropped: (value) => dropped.push(value) });
    const over = new AbortController();
    meeting.send(key('a'), x);
    const cancelled = meeting.recvFused([key('a'), key('b')], { signal: over.signal });
    over.abort();
    await expect(cancelled).rejects.toMatchObject({ code: 'aborted' });
    expect(dropped).toEqual([x]);
    await expect(meeting.recvFused([key('a'), key('c')])).rejects.toMatchObject({ code: 'usage' });
    meeting.send(key('c'), y);
    await expect.poll(() => dropped).toEqual([x, y]);
  });

  it('refuses a key that is sent or asked for twice', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 4 });
    meeting.send(key('a'), x);
    expect(() => meeting.send(key('a'), y)).toThrow(`'a' from ${ps} was sent twice in one step`);
    await meeting.recvAsync(key('a'));
    expect(() => meeting.send(key('a'), y)).toThrow(/sent twice/);
    await expect(meeting.recvAsync(key('a'))).rejects.toThrow(/was asked for twice/);
    await expect(meeting.recvFused([key('b'), key('a')])).rejects.toThrow(/slot 1 of 2, 'a' from .*: 'a' from .* was asked for twice/);
  });

  it('fails what waits, and what comes later, when the step ends', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 4 });
    const [plain, fused] = [meeting.recvAsync(key('a')), meeting.recvFused([key('b'), key('c')])];
    meeting.startAbort(new ShoalError('timeout', 'too late'));
    await expect(plain).rejects.toMatchObject({ code: 'timeout', message: 'too late' });
    await expect(fused).rejects.toMatchObject({ code: 'timeout', message: `slot 0 of 2, 'b' from ${ps}: too late` });
    await expect(meeting.recvAsync(key('d'))).rejects.toThrow('too late');
    expect(() => meeting.send(key('a'), x)).toThrow('too late');
  });

  it('holds no more keys than it may', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 1 });
    meeting.send(key('a'), x);
    expect(() => meeting.send(key('b'), x)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    await expect(meeting.recvAsync(key('c'))).rejects.toThrow(/more than 1 rendezvous keys/);
  });

  it('holds of a loop what was received last, also for another connection', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 1200, keeps: true });
    const inLoop = (iteration: number): string => key('a').replace(/0$/, String(iteration));
    const take = (iteration: number, connection: number): Promise<string | undefined> => {
      const asker = { worker: meeting, isOver: connection < 2 };
      return new Promise((receive, fail) => void meeting.take(inLoop(iteration), { receive, fail }, asker));
    };
    for (let iteration = 1; iteration <= 5000; iteration++) {
      meeting.send(inLoop(iteration), `${iteration}`);
      expect(await take(iteration, 1)).toBe(`${iteration}`);
    }
    expect(await take(4000, 2)).toBe('4000');
    expect(() => meeting.send(inLoop(4001), x)).toThrow(/sent twice/);
  });

  it('gives up a receive by its signal, after which the key may be asked for again', async () => {
    const meeting = new StepRendezvous<string>(1, { keysMax: 4 });
    const abort = new AbortController();
    const given = meeting.recvAsync(key('a'), { signal: abort.signal });
    abort.abort();
    await expect(given).rejects.toThrow(expect.objectContaining({ code: 'aborted' }));
    await expect(meeting.recvAsync(key('a'), { signal: abort.signal })).rejects.toThrow(/cancelled by its signal/);
    const again = meeting.recvAsync(key('a'));
    meeting.send(key('a'), x);
    expect(await again).toBe(x);
  });
});
