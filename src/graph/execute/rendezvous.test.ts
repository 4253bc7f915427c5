/** Each key is sent once and received once; what waits is told when the step ends; the table has a bound. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { formatRendezvousKey } from '../placement/rendezvous-key.ts';
import { scalarOf } from '../testing/kernels.ts';
import { LocalRendezvous } from './rendezvous.ts';

const ps = '/job:ps/task:0/device:CPU:0';
const key = (name: string): string =>
  formatRendezvousKey({ sendDevice: ps, incarnation: 1n, recvDevice: '/job:worker/task:0/device:CPU:0', name, frame: 0, iteration: 0 });
const [x, y] = [scalarOf(1), scalarOf(2)];

describe('a rendezvous', () => {
  it('gives what is sent, before or after it is asked for', async () => {
    const meeting = new LocalRendezvous({ keysMax: 4 });
    meeting.send(key('a'), x);
    const later = meeting.recv(key('b'));
    expect(meeting.awaited).toEqual([key('b')]);
    meeting.send(key('b'), undefined);
    expect(await meeting.recv(key('a'))).toBe(x);
    expect(await later).toBeUndefined();
    expect(meeting.awaited).toEqual([]);
  });

  it('gives several keys to one request when all are there, dead ones slot by slot', async () => {
    const meeting = new LocalRendezvous({ keysMax: 4 });
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

  it('refuses a key that is sent or asked for twice', async () => {
    const meeting = new LocalRendezvous({ keysMax: 4 });
    meeting.send(key('a'), x);
    expect(() => meeting.send(key('a'), y)).toThrow(`'a' from ${ps} was sent twice in one step`);
    await meeting.recv(key('a'));
    expect(() => meeting.send(key('a'), y)).toThrow(/sent twice/);
    await expect(meeting.recv(key('a'))).rejects.toThrow(/was asked for twice/);
    await expect(meeting.recvFused([key('b'), key('a')])).rejects.toThrow(/slot 1 of 2, 'a' from .*: 'a' from .* was asked for twice/);
  });

  it('fails what waits, and what comes later, when the step ends', async () => {
    const meeting = new LocalRendezvous({ keysMax: 4 });
    const [plain, fused] = [meeting.recv(key('a')), meeting.recvFused([key('b'), key('c')])];
    meeting.abort(new ShoalError('timeout', 'too late'));
    await expect(plain).rejects.toMatchObject({ code: 'timeout', message: 'too late' });
    await expect(fused).rejects.toMatchObject({ code: 'timeout', message: `slot 0 of 2, 'b' from ${ps}: too late` });
    await expect(meeting.recv(key('d'))).rejects.toThrow('too late');
    expect(() => meeting.send(key('a'), x)).toThrow('too late');
  });

  it('holds no more keys than it may', async () => {
    const meeting = new LocalRendezvous({ keysMax: 1 });
    meeting.send(key('a'), x);
    expect(() => meeting.send(key('b'), x)).toThrow(expect.objectContaining({ code: 'out-of-memory' }));
    await expect(meeting.recv(key('c'))).rejects.toThrow(/more than 1 rendezvous keys/);
  });
});
