/** Ranks agree on an order: all possible events in small worlds, random ones in larger worlds, together with cores.
 *  `ORDER_WORLDS=10000 npx vitest run src/scheduler/order` runs more of the latter. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { seededRandom, type Random } from '../base/random.ts';
import { Core } from './core.ts';
import { OrderAgreement, type OrderMessage, type OrderPost } from './order-agreement.ts';
import type { Task } from './task.ts';
import { HeldTask } from './testing/held-task.ts';
import { explore, postOf } from './testing/order-world.ts';

const numRuns = Number(process.env.ORDER_WORLDS ?? 300);

describe('every world of', () => {
  const world = { posts: 1, batchBytes: 1, lowBytes: 0, credit: 1 };

  it.each([
    ['2 ranks, 3 tensors, one of two parts', { ...world, size: 2, parts: [[1], [1, 1], [1]] }],
    ['2 ranks, 2 tensors that are ready twice', { ...world, size: 2, parts: [[1], [1]], posts: 2, credit: 2 }],
    ['2 ranks that order ahead of what they start', { ...world, size: 2, parts: [[1], [1, 1]], batchBytes: 2, lowBytes: 1, credit: 2 }],
    ['3 ranks, 2 tensors, one of two parts', { ...world, size: 3, parts: [[1], [1, 1]] }],
    ['4 ranks, 1 tensor of two parts', { ...world, size: 4, parts: [[1, 1]] }],
  ])('%s ends with everything done, in one order', (_, options) => {
    const { states, orders } = explore(options);
    expect(states).toBeGreaterThan(50);
    // The order depends on which tensors were ready first, so several orders are reached.
    expect(orders).toBeGreaterThanOrEqual(options.parts.length > 1 ? 2 : 1);
  });
});

describe('chance', () => {
  interface Rank {
    readonly core: Core;
    readonly agreement: OrderAgreement;
    readonly started: string[];
    readonly running: Map<string, Task>;
    /** Tensors that are not ready yet, of each key in the order of its posts. */
    readonly left: HeldTask[][];
  }

  interface WorldOptions {
    readonly size: number;
    readonly bytes: readonly number[];
    readonly posts: number;
    readonly creditBytes: number;
    readonly batchBytes: number;
    readonly partitionBytes: number;
  }

  class World {
    readonly ranks: readonly Rank[];
    readonly #channels: OrderMessage[][][];
    readonly #random: Random;

    constructor(options: WorldOptions, random: Random) {
      this.#random = random;
      const numbers = Array.from({ length: options.size }, (_, rank) => rank);
      this.#channels = numbers.map(() => numbers.map(() => []));
      this.ranks = numbers.map((rank) => this.#makeRank(rank, options));
    }

    #makeRank(rank: number, options: WorldOptions): Rank {
      const { size, bytes, posts, creditBytes, batchBytes, partitionBytes } = options;
      const agreement = new OrderAgreement({ rank, size, batchBytes });
      const started: string[] = [];
      const running = new Map<string, Task>();
      const onStarted = (task: Task): void => {
        started.push(task.name);
        running.set(task.name, task);
        this.#send(rank, agreement.started({ bytes: task.bytes }));
      };
      const core = new Core({ clock: new VirtualClock(), creditBytes, partitionBytes, observer: { onStarted } });
      core.setLink('', { order: 'arrival' });
      core.start();
      const left = bytes.map((each, key) =>
        Array.from({ length: posts }, (_, post) => {
          const task = new HeldTask({ name: `${key}/${post}`, bytes: each, priority: key, isLate: true });
          core.post(task);
          return task;
        }),
      );
      return { core, agreement, started, running, left };
    }

    #send(from: number, messages: readonly OrderMessage[]): void {
      for (const [to, channel] of this.#channels[from].entries()) if (to !== from) channel.push(...messages);
    }

    /** Makes one random event happen. @returns false if none was possible. */
    step(): boolean {
      const events: (() => void)[] = [];
      for (const [rank, { agreement, left, running }] of this.ranks.entries()) {
        for (const [key, tasks] of left.entries()) if (tasks.length > 0) events.push(() => this.#becomeReady(rank, key));
        for (const [from, channels] of this.#channels.entries()) {
          const [message] = channels[rank];
          if (message === undefined) continue;
          events.push(() => {
            channels[rank].shift();
            this.#send(rank, agreement.receive(from, message));
            this.#feed(rank);
          });
        }
        for (const [name] of rank === 0 ? running : []) {
          if (this.ranks.every((each) => each.running.has(name))) events.push(() => this.#end(name));
        }
      }
      if (events.length === 0) return false;
      events[this.#random.integer(events.length)]();
      return true;
    }

    /** Parts of each rank and key that have no turn yet. */
    readonly #turns = new Map<string, Task[]>();

    #becomeReady(rank: number, key: number): void {
      const { agreement, left } = this.ranks[rank];
      const task = left[key].shift();
      if (task === undefined) return;
      const parts = task.children.length > 0 ? task.children : [task];
      const waiting = this.#turns.get(`${rank}: ${key}`) ?? [];
      this.#turns.set(`${rank}: ${key}`, [...waiting, ...parts]);
      const { bytes } = task;
      const post = { key: String(key), priority: key, what: 'all-reduce', bytes, unitBytes: 1, parts: parts.length };
      this.#send(rank, agreement.ready(post));
      this.#feed(rank);
    }

    #feed(rank: number): void {
      const { agreement } = this.ranks[rank];
      for (let turn = agreement.next(); turn !== undefined; turn = agreement.next()) {
        this.#turns.get(`${rank}: ${turn.key}`)?.shift()?.notifyReady();
      }
    }

    #end(name: string): void {
      for (const [rank, { running }] of this.ranks.entries()) {
        const task = running.get(name);
        running.delete(name);
        task?.notifyFinish();
        this.#feed(rank);
      }
    }
  }

  it('changes the order, on all ranks alike, and everything ends', () => {
    const options = fc.record({
      size: fc.integer({ min: 1, max: 6 }),
      bytes: fc.array(fc.nat(12), { minLength: 1, maxLength: 5 }),
      posts: fc.integer({ min: 1, max: 3 }),
      creditBytes: fc.integer({ min: 1, max: 12 }),
      batchBytes: fc.integer({ min: 1, max: 12 }),
      partitionBytes: fc.integer({ min: 1, max: 6 }),
    });
    const property = fc.property(options, fc.nat(), (each, seed) => {
      const world = new World(each, seededRandom(seed));
      while (world.step());
      const total = each.bytes.reduce((sum, bytes) => sum + Math.max(1, Math.ceil(bytes / each.partitionBytes)), 0) * each.posts;
      expect(world.ranks[0].started).toHaveLength(total);
      for (const { started, core } of world.ranks) {
        expect(started).toEqual(world.ranks[0].started);
        expect(core.statusOf('')).toMatchObject({ inFlight: 0, queued: 0 });
      }
    });
    fc.assert(property, { numRuns });
  });
});

describe('an order', () => {
  class Pair {
    readonly ranks: readonly [OrderAgreement, OrderAgreement];
    readonly #queues: readonly [OrderMessage[], OrderMessage[]] = [[], []];
    /** Parts that each rank has started. */
    readonly started: readonly [string[], string[]] = [[], []];

    constructor() {
      const options = { size: 2, batchBytes: 10, lowBytes: 0 };
      this.ranks = [new OrderAgreement({ ...options, rank: 0 }), new OrderAgreement({ ...options, rank: 1 })];
    }

    ready(key: string, parts: readonly number[]): void {
      for (const rank of [0, 1] as const) this.#queues[rank].push(...this.ranks[rank].ready(postOf(key, parts, 0)));
    }

    exchange(): void {
      while (this.#queues.some(({ length }) => length > 0)) {
        for (const [from, to] of [
          [0, 1],
          [1, 0],
        ] as const) {
          for (const message of this.#queues[from].splice(0)) this.#queues[to].push(...this.ranks[to].receive(from, message));
        }
      }
    }

    start(): void {
      for (const rank of [0, 1] as const) {
        for (let turn = this.ranks[rank].next(); turn !== undefined; turn = this.ranks[rank].next()) {
          this.started[rank].push(`${turn.key}.${turn.part}`);
          this.#queues[rank].push(...this.ranks[rank].started(turn));
        }
      }
    }
  }

  it('is by priority within a batch, and a sooner tensor comes first in the next', () => {
    const pair = new Pair();
    pair.ready('2', [5, 5, 5, 5]);
    expect(pair.ranks[0].next()).toBeUndefined();
    pair.exchange();
    pair.ready('1', [5]);
    pair.ready('0', [5]);
    for (let batch = 0; batch < 3; batch++) {
      pair.start();
      pair.exchange();
    }
    const order = ['2.0', '2.1', '0.0', '1.0', '2.2', '2.3'];
    expect(pair.started).toEqual([order, order]);
  });

  it('needs no messages when there is one rank', () => {
    const alone = new OrderAgreement({ rank: 0, size: 1 });
    expect(alone.ready(postOf('a', [1], 0))).toMatchObject([{ round: 0, posts: [{ key: 'a' }] }]);
    expect(alone.next()).toEqual({ key: 'a', post: 0, part: 0, bytes: 1 });
  });

  it('is by the names of tensors, whatever these are', () => {
    const pair = new Pair();
    for (const key of ['toString', '__proto__', 'constructor']) pair.ready(key, [1]);
    for (let round = 0; round < 2; round++) {
      pair.exchange();
      pair.start();
    }
    expect(pair.started[1]).toEqual(['toString.0', '__proto__.0', 'constructor.0']);
  });

  it('knows the ranks that have not announced a tensor', () => {
    const { ranks } = new Pair();
    const [message] = ranks[0].ready(postOf('a', [1], 0));
    expect(ranks[0].absent('a')).toEqual([1]);
    ranks[1].receive(0, message);
    expect(ranks[1].absent('a')).toEqual([]);
  });

  it('tells many posts in several rounds', () => {
    const pair = new Pair();
    for (let key = 0; key < 3000; key++) pair.ready(String(key).padStart(4, '0'), [1]);
    for (let round = 0; round < 400; round++) {
      pair.exchange();
      pair.start();
    }
    expect(pair.started[0]).toHaveLength(3000);
    expect(pair.started[0]).toEqual(pair.started[1]);
  });

  it.each<[string, OrderPost, string]>([
    ['priority', postOf('a', [2, 2], 7), "rank 1 schedules 'a' (sum, priority 7, 4 bytes in 2 parts)"],
    ['size', postOf('a', [3, 3], 3), '6 bytes in 2 parts'],
    ['partition', postOf('a', [4], 3), '4 bytes in 1 parts'],
    ['operation', { ...postOf('a', [2, 2], 3), what: 'all-reduce float64 sum' }, 'all-reduce float64 sum'],
  ])('is refused on all ranks when one gives another %s', (_, other, text) => {
    const { ranks } = new Pair();
    const [mine] = ranks[0].ready(postOf('a', [2, 2], 3));
    const [theirs] = ranks[1].ready(other);
    const error: unknown = expect.objectContaining({ code: 'mismatch', message: expect.stringContaining(text) as string });
    expect(() => ranks[0].receive(1, theirs)).toThrow(error);
    expect(() => ranks[1].receive(0, mine)).toThrow(error);
  });

  const none: OrderMessage = { round: 0, posts: [], batchBytes: 10 };
  it.each<[string, string, string, (rank: OrderAgreement) => unknown]>([
    ['a stranger', 'protocol', 'no other rank of 2', (rank) => rank.receive(2, none)],
    ['itself', 'protocol', 'no other rank of 2', (rank) => rank.receive(0, none)],
    ['another round', 'protocol', 'round 1 while this rank is in round 0', (rank) => rank.receive(1, { ...none, round: 1 })],
    [
      'too many posts',
      'protocol',
      '1025 posts',
      (rank) => rank.receive(1, { ...none, posts: Array.from({ length: 1025 }, () => postOf('a', [1], 0)) }),
    ],
    [
      'sizes that are none',
      'protocol',
      'with -1 bytes',
      (rank) => rank.receive(1, { ...none, posts: [{ ...postOf('a', [1], 0), bytes: -1 }] }),
    ],
    ['other batches', 'mismatch', 'in batches of 11 bytes', (rank) => rank.receive(1, { ...none, batchBytes: 11 })],
    ['a tensor without parts', 'usage', 'without any part', (rank) => rank.ready(postOf('a', [], 0))],
    ['more parts than units', 'usage', 'in 3 parts', (rank) => rank.ready({ ...postOf('a', [2], 0), parts: 3 })],
    ['a priority that is none', 'usage', 'with priority NaN', (rank) => rank.ready(postOf('a', [1], NaN))],
    ['a rank that there is not', 'usage', 'no rank 2 of 2', () => new OrderAgreement({ rank: 2, size: 2 })],
    [
      'a batch of nothing',
      'usage',
      "'batchBytes' must be a whole number from 1",
      () => new OrderAgreement({ rank: 0, size: 2, batchBytes: 0 }),
    ],
  ])('refuses %s', (_, code, message, run) => {
    const { ranks } = new Pair();
    expect(() => run(ranks[0])).toThrow(expect.objectContaining({ code, message: expect.stringContaining(message) as string }));
  });
});
