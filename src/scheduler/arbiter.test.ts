import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { Arbiter, type CreditAccount } from './arbiter.ts';
import { Core } from './core.ts';
import { HeldTask } from './testing/held-task.ts';

const numRuns = Number(process.env.SCHEDULER_PROGRAMS ?? 500);

describe('an arbiter', () => {
  const account = (arbiter: Arbiter, creditBytes: number, more: Partial<Parameters<Arbiter['open']>[0]> = {}): CreditAccount =>
    arbiter.open({ creditBytes: () => creditBytes, resource: 'network', onRoom: () => undefined, ...more });

  it('admits tasks within the credit of the accounts that share the network', () => {
    const arbiter = new Arbiter();
    const [group, server] = [account(arbiter, 8), account(arbiter, 10, { isDestination: true })];
    group.started(6);
    expect(server.admits(100, 0)).toBe(true); // the first of an account, always
    server.started(3);
    expect([server.admits(1, 0), server.admits(2, 0)]).toEqual([true, false]); // 6 + 3 of the larger credit, 10
    server.finished(3);
    expect(group.admits(2, 0)).toBe(true);
    expect(group.admits(3, 0)).toBe(false); // its own credit
  });

  it('keeps a later task back while a sooner one waits', () => {
    const arbiter = new Arbiter();
    const [group, server] = [account(arbiter, 8), account(arbiter, 8, { isDestination: true })];
    group.started(4);
    server.started(4);
    expect(server.admits(4, 1)).toBe(false);
    group.finished(4);
    group.started(1);
    expect([group.admits(1, 2), group.admits(1, 1)]).toEqual([false, true]);
    server.withdraw();
    expect(group.admits(1, 2)).toBe(true);
  });

  it('counts neither servers for each other, nor memory for the network, nor accounts that share nothing', () => {
    const arbiter = new Arbiter();
    const server = account(arbiter, 8, { isDestination: true });
    for (const other of [{ isDestination: true }, { resource: 'memory' }, { resource: undefined }] as const)
      account(arbiter, 8, other).started(8);
    server.started(4);
    expect(server.admits(4, 0)).toBe(true);
    account(arbiter, 8).started(1);
    expect(server.admits(4, 0)).toBe(false);
  });

  it('gives room to the soonest first, whoever has finished', () => {
    const arbiter = new Arbiter();
    const order: string[] = [];
    const clock = new VirtualClock();
    const core = (name: string): Core => {
      const made = new Core({
        clock,
        creditBytes: 4,
        partitionBytes: 4,
        arbiter,
        observer: { onStarted: (task) => void order.push(task.name) },
      });
      made.setLink(name, { resource: 'network' });
      made.start();
      return made;
    };
    const [a, b] = [core('a'), core('b')];
    const post = (to: Core, name: string, priority: number): HeldTask => {
      const task = new HeldTask({ name, bytes: 2, priority, link: to === a ? 'a' : 'b' });
      to.post(task);
      return task;
    };
    const first = post(a, 'a first', 0);
    post(b, 'b first', 0);
    post(a, 'a late', 9);
    post(b, 'b soon', 1);
    expect(order).toEqual(['a first', 'b first']);
    first.notifyFinish();
    // The account that has finished is empty now, so its next task is always admitted; tasks that are sooner come before it.
    expect(order).toEqual(['a first', 'b first', 'b soon', 'a late']);
  });
});

/** Ranks with scheduled groups, whose parts start in one order on all ranks and end when all have started them, and pushes, which
 *  end by themselves. The order of events on the ranks is arbitrary. */
it('lets nothing wait for ever, however ranks and groups depend on each other', () => {
  const program = fc.record({
    ranks: fc.integer({ min: 2, max: 4 }),
    groups: fc.integer({ min: 1, max: 3 }),
    parts: fc.array(fc.record({ group: fc.nat(2), bytes: fc.integer({ min: 1, max: 9 }), priority: fc.nat(3) }), { maxLength: 12 }),
    pushes: fc.array(fc.record({ rank: fc.nat(3), server: fc.nat(1), bytes: fc.integer({ min: 1, max: 9 }), priority: fc.nat(3) }), {
      maxLength: 12,
    }),
    picks: fc.array(fc.nat(1000), { minLength: 80, maxLength: 80 }),
  });
  fc.assert(
    fc.property(program, ({ ranks, groups, parts, pushes, picks }) => {
      const clock = new VirtualClock();
      const cores = Array.from({ length: ranks }, () => {
        const arbiter = new Arbiter();
        const core = new Core({ clock, creditBytes: 8, partitionBytes: 100, arbiter });
        for (let group = 0; group < groups; group++) core.setLink(`group ${group}`, { order: 'arrival', resource: 'network' });
        core.start();
        // Links to servers are destinations: accounts of another owner.
        const servers = Array.from({ length: 2 }, () => new PushLink(arbiter));
        return { core, servers };
      });
      // Each group's order is the same on all ranks; how the groups interleave is each rank's own.
      const waiting = cores.map(({ core }) =>
        Array.from({ length: groups }, (_, group) =>
          parts.flatMap((part, index) => {
            if (part.group % groups !== group) return [];
            const task = new HeldTask({ ...part, name: String(index), link: `group ${group}`, isLate: true });
            core.post(task);
            return [task];
          }),
        ),
      );
      const all = cores.map((_, rank) => waiting[rank].flat());
      for (const push of pushes) cores[push.rank % ranks].servers[push.server].push(push);
      let pick = 0;
      for (;;) {
        const moves: (() => void)[] = [];
        for (const byGroup of waiting) for (const tasks of byGroup) if (tasks.length > 0) moves.push(() => tasks.shift()!.notifyReady());
        // A part that all ranks have started ends on each rank at any time.
        for (const [rank, tasks] of all.entries()) {
          for (const task of tasks) {
            const isEverywhere = all.every((others) => ['running', 'ended'].includes(others.find(({ name }) => name === task.name)!.state));
            if (task.state === 'running' && isEverywhere) moves.push(() => all[rank].find((each) => each === task)!.notifyFinish());
          }
        }
        for (const { servers } of cores) for (const server of servers) if (server.inFlight.length > 0) moves.push(() => server.finish());
        if (moves.length === 0) break;
        moves[picks[pick++ % picks.length] % moves.length]();
        for (const { core, servers } of cores) {
          const byGroup = Array.from({ length: groups }, (_, group) => core.statusOf(`group ${group}`));
          for (const { account } of servers) {
            const accounts = [...byGroup, account];
            const firsts = accounts.filter(({ inFlight }) => inFlight > 0).length;
            // The bound: the largest credit, and one first task of each account, of 9 bytes at most.
            expect(accounts.reduce((sum, { inFlightBytes }) => sum + inFlightBytes, 0)).toBeLessThanOrEqual(8 + 9 * firsts);
          }
        }
      }
      expect(all.flat().every(({ state }) => state === 'ended')).toBe(true);
      expect(cores.every(({ servers }) => servers.every(({ waiting: left }) => left.length === 0))).toBe(true);
    }),
    { numRuns },
  );
});

interface Push {
  readonly bytes: number;
  readonly priority: number;
}

class PushLink {
  readonly account: CreditAccount;
  readonly waiting: Push[] = [];
  readonly inFlight: Push[] = [];

  constructor(arbiter: Arbiter) {
    this.account = arbiter.open({ creditBytes: () => 8, resource: 'network', isDestination: true, onRoom: () => this.#pump() });
  }

  push(push: Push): void {
    this.waiting.push(push);
    this.waiting.sort((a, b) => a.priority - b.priority);
    this.#pump();
  }

  finish(): void {
    this.account.finished(this.inFlight.shift()!.bytes);
    this.account.offerRoom();
  }

  #pump(): void {
    while (this.waiting.length > 0 && this.account.admits(this.waiting[0].bytes, this.waiting[0].priority)) {
      const [next] = this.waiting.splice(0, 1);
      this.account.started(next.bytes);
      this.inFlight.push(next);
    }
  }
}
