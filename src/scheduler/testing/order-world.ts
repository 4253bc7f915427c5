/** All ways in which ranks that agree on an order can go on: tensors become ready on any rank at any time, messages arrive at any
 *  time, in order between two ranks, what is agreed on starts when the credit allows, and an operation ends when all have started it. */
import { OrderAgreement, type OrderMessage, type OrderPost, type OrderState, type Turn } from '../order-agreement.ts';

export interface OrderWorldOptions {
  readonly size: number;
  /** Of each key, the soonest first: the bytes of its parts. */
  readonly parts: readonly (readonly number[])[];
  /** How often each key becomes ready on each rank. */
  readonly posts: number;
  readonly batchBytes: number;
  readonly lowBytes: number;
  /** Operations in flight of a rank, at most. */
  readonly credit: number;
}

/** Plain data: its JSON is its identity. */
interface World {
  readonly states: readonly OrderState[];
  /** Messages on their way: from a rank, to a rank. */
  readonly channels: readonly (readonly OrderMessage[][])[];
  /** Of each rank and key: how often it has still to become ready. */
  readonly left: readonly number[][];
  /** The one order, as far as any rank has started it. */
  readonly order: Turn[];
  /** Of each rank: how many of these it has started. */
  readonly started: number[];
  /** Of these: which have ended. */
  readonly ended: number[];
}

export interface Exploration {
  readonly states: number;
  /** Different orders in which everything was started. */
  readonly orders: number;
}

/** Visits every world that can be reached.
 *  @throws Error for ranks that start in different orders, and for worlds in which nothing can happen and something is left. */
export function explore(options: OrderWorldOptions): Exploration {
  const first = JSON.stringify(begin(options));
  const seen = new Set([first]);
  const left = [first];
  const orders = new Set<string>();
  for (let identity = left.pop(); identity !== undefined; identity = left.pop()) {
    const next = eventsOf(options, JSON.parse(identity) as World);
    if (next.length === 0) orders.add(checkEnd(options, JSON.parse(identity) as World));
    for (const event of next) {
      const world = JSON.parse(identity) as World;
      event(world);
      const reached = JSON.stringify(renumbered(world));
      if (seen.has(reached)) continue;
      seen.add(reached);
      left.push(reached);
    }
  }
  return { states: seen.size, orders: orders.size };
}

/** Which rank has which number makes no difference: worlds that differ in that alone mostly get the same numbers. */
function renumbered({ states, channels, left, order, started, ended }: World): World {
  const looks = states.map(({ heard: _heard, undecided, ...rest }, rank) =>
    JSON.stringify([started[rank], left[rank], undecided[rank], rest, channels[rank]]),
  );
  const ranks = looks.map((_, rank) => rank).sort((a, b) => (looks[a] < looks[b] ? -1 : looks[a] > looks[b] ? 1 : 0));
  return {
    states: ranks.map((rank) => ({
      ...states[rank],
      undecided: ranks.map((other) => states[rank].undecided[other]),
      heard: states[rank].heard.map((round) => ranks.map((other) => round[other])),
    })),
    channels: ranks.map((from) => ranks.map((to) => channels[from][to])),
    left: ranks.map((rank) => left[rank]),
    order,
    started: ranks.map((rank) => started[rank]),
    ended,
  };
}

type Event = (world: World) => void;

/** What can happen. An event that others neither cause, prevent nor notice stands for all: when it happens makes no difference. */
function eventsOf(options: OrderWorldOptions, world: World): Event[] {
  const { size, credit } = options;
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const ends = world.order.flatMap((_, turn) =>
    !world.ended.includes(turn) && world.started.every((count) => count > turn) ? [turn] : [],
  );
  if (ends.length > 0) return [(next) => void next.ended.push(ends[0])];
  const deliveries = ranks.flatMap((from) => ranks.flatMap((to) => (world.channels[from][to].length > 0 ? [{ from, to }] : [])));
  // Posts that do not complete a round that the receiver has answered already: it only keeps them. Nothing that it, or anybody,
  // does depends on them before the last ones have come.
  const kept = deliveries.find(({ from, to }) => {
    const { isOpen, heard } = world.states[to];
    return isOpen && (heard[0][from] !== null || heard[0].filter((posts) => posts !== null).length < size - 2);
  });
  if (kept !== undefined) return [(next) => deliver(options, next, kept.from, kept.to)];
  const inFlight = (rank: number): number => world.started[rank] - world.ended.filter((turn) => turn < world.started[rank]).length;
  const canStart = ranks.filter((rank) => world.states[rank].agreed.length > 0 && inFlight(rank) < credit);
  return [
    ...deliveries.map(
      ({ from, to }): Event =>
        (next) =>
          deliver(options, next, from, to),
    ),
    ...ranks.flatMap((rank) =>
      world.left[rank].flatMap((count, key): Event[] => (count > 0 ? [(next) => becomeReady(options, next, rank, key)] : [])),
    ),
    ...canStart.map(
      (rank): Event =>
        (next) =>
          start(options, next, rank),
    ),
  ];
}

function begin({ size, parts, posts }: OrderWorldOptions): World {
  const ofRanks = <T>(make: (rank: number) => T): T[] => Array.from({ length: size }, (_, rank) => make(rank));
  return {
    states: ofRanks((rank) => new OrderAgreement({ rank, size }).state),
    channels: ofRanks(() => ofRanks(() => [])),
    left: ofRanks(() => parts.map(() => posts)),
    order: [],
    started: ofRanks(() => 0),
    ended: [],
  };
}

function agreementOf({ size, batchBytes, lowBytes }: OrderWorldOptions, world: World, rank: number): OrderAgreement {
  return new OrderAgreement({ rank, size, batchBytes, lowBytes }, world.states[rank]);
}

/** @param parts Their bytes; larger ones behind. */
export function postOf(key: string, parts: readonly number[], priority: number): OrderPost {
  const bytes = parts.reduce((sum, each) => sum + each, 0);
  return { key, priority, what: 'sum', bytes, unitBytes: 1, parts: parts.length };
}

function send(world: World, from: number, messages: readonly OrderMessage[]): void {
  for (const [to, channel] of world.channels[from].entries()) if (to !== from) channel.push(...messages);
}

function deliver(options: OrderWorldOptions, world: World, from: number, to: number): void {
  const message = world.channels[from][to].shift();
  if (message !== undefined) send(world, to, agreementOf(options, world, to).receive(from, message));
}

function becomeReady(options: OrderWorldOptions, world: World, rank: number, key: number): void {
  world.left[rank][key]--;
  send(world, rank, agreementOf(options, world, rank).ready(postOf(String(key), options.parts[key], key)));
}

function start(options: OrderWorldOptions, world: World, rank: number): void {
  const agreement = agreementOf(options, world, rank);
  const turn = agreement.next();
  if (turn === undefined) return;
  const place = world.started[rank]++;
  if (place === world.order.length) world.order.push(turn);
  else if (JSON.stringify(world.order[place]) !== JSON.stringify(turn)) {
    throw new Error(`rank ${rank} starts ${JSON.stringify(turn)} where another started ${JSON.stringify(world.order[place])}`);
  }
  send(world, rank, agreement.started(turn));
}

/** @returns the order. */
function checkEnd({ parts, posts }: OrderWorldOptions, world: World): string {
  const { order, ended, left, channels } = world;
  const total = parts.reduce((sum, each) => sum + each.length, 0) * posts;
  if (left.flat().some((count) => count > 0) || channels.flat(2).length > 0 || order.length !== total || ended.length !== total) {
    throw new Error(`nothing can happen, and not all is done: ${JSON.stringify(world)}`);
  }
  return order.map(({ key, part }) => `${key}.${part}`).join(' ');
}
