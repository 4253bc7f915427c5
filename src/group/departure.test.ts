/** Ranks that go while others are still at it: whom these name, and what they forgive. */
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { abortConnection } from '../fabric/abortable.ts';
import type { Connection, Fabric, RemoteRegion } from '../fabric/fabric.ts';
import { decorateFabric, ForwardingConnection } from '../fabric/testing/hooks/decorate.ts';
import { nativeUnavailableReason } from '../memory/native.ts';
import type { Region } from '../memory/region.ts';
import { suspicionMs } from './comm/group-engine.ts';
import { answerMs } from './comm/diagnosis/inquiry.ts';
import { answerMs as lastWordsMs } from './comm/last-words.ts';
import { startRanks } from './testing/in-process-world.ts';
import type { ProcessGroup, Work } from './caller/types.ts';

const missing = nativeUnavailableReason();

/** Long enough for everything to arrive that has been sent. */
async function delivered(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise(setImmediate);
}

describe('a rank that goes after a timeout', () => {
  /** Speaks no more once it is stopped, as a process that has got SIGSTOP. */
  class StoppableConnection extends ForwardingConnection {
    readonly #isStopped: () => boolean;

    constructor(inner: Connection, isStopped: () => boolean) {
      super(inner);
      this.#isStopped = isStopped;
    }

    override send(message: Uint8Array): Promise<void> {
      return this.#isStopped() ? Promise.resolve() : super.send(message);
    }
  }

  it.each(['when it has failed', 'before it has drawn its conclusion'] as const)(
    '%s, is not blamed by those that wait for the same rank',
    async (when) => {
      const clock = new VirtualClock();
      let stopped = false;
      const ofRank0: Connection[] = [];
      const wrap = (fabric: Fabric, rank: number): Fabric =>
        decorateFabric(fabric, (connection) => {
          if (rank === 0) ofRank0.push(connection);
          return rank === 1 ? new StoppableConnection(connection, () => stopped) : connection;
        });
      const { groups } = await startRanks(3, { clock, wrap });
      stopped = true;
      const call = async (group: ProcessGroup): Promise<void> => {
        await expect(group.allReduce(new Float32Array(4), { timeoutMs: 1000 })).rejects.toMatchObject({ code: 'timeout', peer: 1 });
      };
      const first = call(groups[0]);
      // Killed, it is told of its own end.
      first.catch(() => undefined);
      await delivered();
      // Rank 2 waits for a shorter time and hears of the timeout a little later: rank 0 is the first to draw the conclusion.
      clock.advance(500);
      const last = call(groups[2]);
      await delivered();
      clock.advance(510);
      await delivered();
      if (when === 'when it has failed') {
        clock.advance(answerMs - 10);
        await first;
      }
      ofRank0.forEach(abortConnection);
      await delivered();
      clock.advance(when === 'when it has failed' ? 10 : answerMs);
      await last;
    },
  );
});

describe('a rank that ends right after a call', () => {
  /** Its bells and messages are lost once it ends. */
  class EndingConnection extends ForwardingConnection {
    ends = false;

    override send(message: Uint8Array): Promise<void> {
      return this.ends ? Promise.resolve() : super.send(message);
    }

    override write(...args: Parameters<Connection['write']>): Promise<void> {
      return this.ends ? Promise.resolve() : super.write(...args);
    }
  }

  it.each([true, false])('has made the call, fast path %s: others need no bell for it', async (fastPath) => {
    const ending: EndingConnection[] = [];
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      decorateFabric(fabric, (connection) => {
        if (rank !== 2) return connection;
        const made = new EndingConnection(connection);
        ending.push(made);
        return made;
      });
    const { groups } = await startRanks(3, { fastPath, wrap });
    for (let k = 0; k < 3; k++) await Promise.all(groups.map((group) => group.barrier()));
    const last = [groups[0].barrier(), groups[1].barrier()];
    await delivered();
    for (const connection of ending) connection.ends = true;
    await groups[2].barrier();
    await delivered();
    expect(last.map(({ done }) => done)).toEqual([false, false]);
    // Rank 0 hears of the end from rank 1.
    abortConnection(ending.find(({ peer }) => peer.rank === 1)!);
    await Promise.all(last);
    await delivered();
    for (const group of groups.slice(0, 2)) await expect(group.barrier()).rejects.toMatchObject({ code: 'peer-lost', peer: 2 });
  });
});

describe('a rank that leaves because the group has failed', () => {
  /** Takes everything and answers nothing. */
  class MuteConnection extends ForwardingConnection {
    readonly #isMute: () => boolean;

    constructor(inner: Connection, isMute: () => boolean) {
      super(inner);
      this.#isMute = isMute;
    }

    override send(message: Uint8Array): Promise<void> {
      return this.#isMute() ? Promise.resolve() : super.send(message);
    }
  }

  it('is not blamed by a rank that receives from it and still tells the others why', async () => {
    const clock = new VirtualClock();
    let mute = false;
    const isBetween = (rank: number, peer: number): boolean => rank === 2 && peer === 1;
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      decorateFabric(fabric, (connection) =>
        isBetween(rank, connection.peer.rank) ? new MuteConnection(connection, () => mute) : connection,
      );
    const { groups } = await startRanks(3, { clock, wrap });
    const abort = new AbortController();
    const called = groups[0].allReduce(new Float32Array(4), { signal: abort.signal });
    const received = groups[1].recv(new Float32Array(4), 0, { timeoutMs: 600_000 });
    let outcome: unknown;
    received.catch((error: unknown) => (outcome = error));
    await delivered();
    mute = true;
    abort.abort();
    await expect(called).rejects.toMatchObject({ code: 'aborted' });
    void groups[0].destroy();
    await delivered();
    expect(outcome).toBe(undefined);
    // Now rank 1 waits for rank 2 no longer.
    for (let passedMs = 0; passedMs <= lastWordsMs; passedMs += 100) clock.advance(100);
    await delivered();
    expect(outcome).toMatchObject({ code: 'aborted' });
  });
});

describe('a rank that leaves in order', () => {
  it.for(['host', 'network', 'tcp'] as const)('is there until what it sent has been taken, over %s', async (kind, { skip }) => {
    if (kind === 'tcp' && missing !== undefined) skip(missing);
    const { groups } = await startRanks(2, { kind });
    const [sender, receiver] = groups;
    const large = Float32Array.from({ length: 100_000 }, (_, index) => index);
    void sender.send(large, 1);
    let hasLeft = false;
    const left = sender.destroy().then(() => (hasLeft = true));
    await delivered();
    expect(hasLeft).toBe(false);
    const taken = new Float32Array(large.length);
    await receiver.recv(taken, 0);
    expect(taken).toEqual(large);
    await Promise.all([left, receiver.destroy()]);
  });

  it('waits once for what it sent when a group and its world are destroyed together', async () => {
    // No limit passes.
    const world = await startRanks(2, { kind: 'network', clock: new VirtualClock() });
    const [[sender, receiver], parts] = [world.groups, await world.each((group) => group.newGroup([0, 1]))];
    const large = Float32Array.from({ length: 100_000 }, (_, index) => index);
    void parts[0]!.send(large, 1);
    const left = Promise.all([parts[0]!.destroy(), sender.destroy()]);
    await delivered();
    const taken = new Float32Array(large.length);
    await parts[1]!.recv(taken, 0);
    expect(taken).toEqual(large);
    await left;
    await receiver.destroy();
  });

  it('is not waited for when its connection does not take a message', async () => {
    /** Refuses one message when told so, as with too much before it. */
    class RefusingConnection extends ForwardingConnection {
      refuses = false;

      override send(message: Uint8Array): Promise<void> {
        if (!this.refuses) return super.send(message);
        this.refuses = false;
        return Promise.reject(new ShoalError('out-of-memory', 'rank 1 does not take what is posted'));
      }
    }
    const toRank1: RefusingConnection[] = [];
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      decorateFabric(fabric, (connection) => {
        const refusing = new RefusingConnection(connection);
        if (rank === 0 && connection.peer.rank === 1) toRank1.push(refusing);
        return refusing;
      });
    await using world = await startRanks(3, { kind: 'network', wrap });
    for (const connection of toRank1) connection.refuses = true;
    const works = world.groups.map((group) => group.allReduce(new Float32Array(4)));
    const message = expect.stringMatching(/rank 1 was lost .*: rank 1 does not take what is posted/) as string;
    await expect(works[0]).rejects.toMatchObject({ code: 'peer-lost', peer: 1, message });
    for (const work of works.slice(1)) await expect(work).rejects.toMatchObject({ code: 'peer-lost' });
  });

  it('does not wait for ever for whoever takes nothing', async () => {
    const { groups } = await startRanks(2, { kind: 'network' });
    const work = groups[0].send(new Float32Array(100_000), 1);
    const failed = expect(work).rejects.toMatchObject({ code: 'closed' });
    await groups[0].destroy({ timeoutMs: 20 });
    await failed;
    await groups[1].destroy();
  });

  /** When told so, does not reach the peer's memory for once. */
  class BlinkingConnection extends ForwardingConnection {
    blinks = false;

    override map(remote: RemoteRegion): Region {
      if (!this.blinks) return super.map(remote);
      this.blinks = false;
      throw new ShoalError('system', 'its memory is gone');
    }
  }

  /** Ranks 0 and 1 read what rank 2 broadcasts, but rank 0 cannot reach its memory at first. */
  async function broadcastWithBlink(clock: VirtualClock): Promise<{ groups: readonly ProcessGroup[]; works: Work[]; x: Float32Array }> {
    const toRoot: BlinkingConnection[] = [];
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      decorateFabric(fabric, (connection) => {
        const blinking = new BlinkingConnection(connection);
        if (rank === 0 && connection.peer.rank === 2) toRoot.push(blinking);
        return blinking;
      });
    const { groups } = await startRanks(3, { clock, wrap, settings: { algorithms: '*:host-direct' } });
    for (const connection of toRoot) connection.blinks = true;
    const arrays = groups.map(({ rank }) => Float32Array.of(rank, rank));
    const works = groups.map((group, rank) => group.broadcast(arrays[rank], { root: 2 }));
    await delivered();
    expect(toRoot.map(({ blinks }) => blinks)).toEqual([false]);
    expect(works.map(({ done }) => done)).toEqual([false, true, false]);
    return { groups, works, x: arrays[0] };
  }

  it('may be the reason of an error of ours, which is then forgotten', async () => {
    const clock = new VirtualClock();
    const { groups, works, x } = await broadcastWithBlink(clock);
    clock.advance(suspicionMs - 1);
    const left = groups[1].destroy();
    await delivered();
    clock.advance(1);
    await Promise.all(works);
    expect([...x]).toEqual([2, 2]);
    await left;
    // The group goes on.
    const sent = groups[2].send(Float32Array.of(5), 0);
    await groups[0].recv(x.subarray(0, 1), 2);
    await sent;
    expect([...x]).toEqual([5, 2]);
  });

  it('is heard by a rank that got no CPU when its word came', async () => {
    const clock = new VirtualClock();
    const { groups, works, x } = await broadcastWithBlink(clock);
    const left = groups[1].destroy();
    clock.stall(2 * suspicionMs);
    await delivered();
    await Promise.all(works);
    expect([...x]).toEqual([2, 2]);
    await left;
  });

  it('is waited for so long and no longer', async () => {
    const clock = new VirtualClock();
    const { works } = await broadcastWithBlink(clock);
    clock.advance(suspicionMs - 1);
    await delivered();
    expect(works[0].done).toBe(false);
    clock.advance(1);
    for (const work of [works[0], works[2]]) await expect(work).rejects.toMatchObject({ code: 'system', message: 'its memory is gone' });
  });
});

it('a rank that ends because of another one is not taken for the reason in a group of which that one is no member', async () => {
  const connectionsOf: Connection[][] = [[], [], []];
  const wrap = (fabric: Fabric, rank: number): Fabric =>
    decorateFabric(fabric, (connection) => {
      connectionsOf[rank].push(connection);
      return connection;
    });
  const { groups } = await startRanks(3, { clock: new VirtualClock(), wrap });
  const [pair] = await Promise.all(groups.map((group) => group.newGroup([0, 1])));
  connectionsOf[2].forEach(abortConnection);
  await delivered();
  await expect(Promise.resolve(groups[0].barrier())).rejects.toMatchObject({ code: 'peer-lost', peer: 2 });
  connectionsOf[1].forEach(abortConnection);
  await delivered();
  const call = Promise.resolve(pair?.barrier());
  await expect(call).rejects.toMatchObject({ code: 'peer-lost', peer: 2 });
  await expect(call).rejects.toThrow(/^rank 1 was lost between collectives of group 'world\/.*': it had failed: rank 2 was lost /);
});

it('a rank because of which another one ends names itself, not that one', async () => {
  const clock = new VirtualClock();
  const ofRank2: Connection[] = [];
  const wrap = (fabric: Fabric, rank: number): Fabric =>
    decorateFabric(fabric, (connection) => {
      if (rank === 2) ofRank2.push(connection);
      return connection;
    });
  const { groups } = await startRanks(3, { clock, wrap });
  const [, pair] = await Promise.all(groups.map((group) => group.newGroup([1, 2])));
  const barriers = [0, 2].map((rank) => Promise.resolve(groups[rank].barrier({ timeoutMs: 1000 })).catch((thrown: unknown) => thrown));
  for (let second = 0; second < 20; second++) {
    clock.advance(1000);
    await delivered();
  }
  for (const failed of await Promise.all(barriers)) expect(failed).toMatchObject({ code: 'timeout', peer: 1 });
  ofRank2.forEach(abortConnection);
  await delivered();
  const call = Promise.resolve(pair?.barrier());
  await expect(call).rejects.toMatchObject({ code: 'peer-lost', peer: 1 });
  await expect(call).rejects.toThrow(/^rank 2 was lost between collectives of group 'world\/.*': it had failed: .*timed out/);
});

describe('a rank that ends while its group opens', () => {
  /** Rank 0 cannot reach the memory of rank 1 from now on, as if that had been given back. */
  async function openingWithoutMemory(clock: VirtualClock): Promise<{ groups: readonly ProcessGroup[]; ofRank1: Connection[] }> {
    let gone = false;
    const ofRank1: Connection[] = [];
    class UnmappableConnection extends ForwardingConnection {
      override map(remote: RemoteRegion): Region {
        if (gone) throw new ShoalError('unsupported', 'its memory is gone');
        return super.map(remote);
      }
    }
    const wrap = (fabric: Fabric, rank: number): Fabric =>
      decorateFabric(fabric, (connection) => {
        if (rank === 1) ofRank1.push(connection);
        return rank === 0 ? new UnmappableConnection(connection) : connection;
      });
    const { groups } = await startRanks(2, { clock, wrap });
    gone = true;
    return { groups, ofRank1 };
  }

  it('has left it: the group opens, and its calls say so', async () => {
    const { groups } = await openingWithoutMemory(new VirtualClock());
    const [first] = await Promise.all([groups[0].newGroup([0, 1]), groups[1].newGroup([0, 1]).then((group) => group?.destroy())]);
    const call = Promise.resolve(first?.barrier());
    await expect(call).rejects.toMatchObject({ code: 'mismatch' });
    await expect(call).rejects.toThrow(/rank 1: left the group after 0 calls/);
  });

  it('has died: it is named as lost', async () => {
    const { groups, ofRank1 } = await openingWithoutMemory(new VirtualClock());
    const opening = groups[0].newGroup([0, 1]);
    void groups[1].newGroup([0, 1]).catch(() => undefined);
    await delivered();
    ofRank1.forEach(abortConnection);
    await expect(opening).rejects.toMatchObject({ code: 'peer-lost', peer: 1 });
  });

  it('is still there: its memory is what is wrong', async () => {
    const clock = new VirtualClock();
    const { groups } = await openingWithoutMemory(clock);
    const opening = groups[0].newGroup([0, 1]);
    void groups[1].newGroup([0, 1]).catch(() => undefined);
    await delivered();
    clock.advance(suspicionMs);
    await expect(opening).rejects.toMatchObject({ code: 'unsupported', peer: 1, message: expect.stringMatching(/memory of rank 1/) });
  });
});

describe('a rank that has left', () => {
  it('sends no more: a receive that was called too late says so, and what it sent before arrives', async () => {
    const { groups } = await startRanks(3);
    const [first, second, third] = groups;
    const large = new Float32Array(100_000).fill(3);
    await second.send(Float32Array.of(1), 0);
    await second.destroy();
    await delivered();
    const x = new Float32Array(1);
    await first.recv(x, 1);
    expect([...x]).toEqual([1]);
    const lost = { code: 'peer-lost', peer: 1, message: "rank 1 left group 'world' before it took part in a transfer" };
    await expect(first.recv(x, 1)).rejects.toMatchObject(lost);
    await expect(first.send(large, 1)).rejects.toMatchObject(lost);
    // Others may send still.
    const any = first.recv(x, 'any');
    await delivered();
    expect(any.done).toBe(false);
    await third.send(Float32Array.of(2), 0);
    await any;
    await third.destroy();
    await delivered();
    await expect(first.recv(x, 'any')).rejects.toMatchObject({ code: 'peer-lost', message: expect.stringMatching(/all other ranks left/) });
  });
});
