/** Explores all ways in which ranks that agree on an order can go on: tensors become ready on any rank at any time, messages arrive at any
 *  time, in order between two ranks, agreed turns start when the credit allows, and an operation ends when all ranks have started it. */
import { OrderAgreement, type OrderMessage, type OrderPost, type OrderState, type Turn } from '../order-agreement.ts';

export interface OrderWorldOptions {
  readonly size: number;
  /** Bytes of the parts of each key, the soonest key first. */
  readonly parts: readonly (readonly number[])[];
  /** Number of times that each key becomes ready on each rank. */
  readonly posts: number;
  readonly batchBytes: number;
  readonly lowBytes: number;
  /** Most operations in flight of a rank. */
  readonly credit: number;
}

/** A state of the world, as plain data: equal contents are the same world. Worlds share the parts that an event does not change. */
interface World {
  readonly states: OrderState[];
  /** Messages on their way: from a rank, to a rank. */
  readonly channels: readonly (readonly OrderMessage[][])[];
  /** Number of times that each key has still to become ready, by rank and key. */
  readonly left: readonly number[][];
  /** The one order, as far as any rank has started it. */
  readonly order: Turn[];
  /** Number of turns of `order` that each rank has started. */
  readonly started: number[];
  /** Indices of the turns of `order` that have ended. */
  readonly ended: number[];
}

export interface Exploration {
  readonly states: number;
  /** Number of different orders in which everything was started. */
  readonly orders: number;
}

/** Visits every world that can be reached.
 *  @throws Error for ranks that start in different orders, and for worlds in which nothing can happen and something is left. */
export function explore(options: OrderWorldOptions): Exploration {
  const first = begin(options);
  const names = new Names();
  const seen = new Set([names.ofWorld(first)]);
  const left = [first];
  const orders = new Set<string>();
  for (let world = left.pop(); world !== undefined; world = left.pop()) {
    const next = eventsOf(options, world);
    if (next.length === 0) orders.add(checkEnd(options, world));
    for (const event of next) {
      const after = copyOf(world);
      event(after);
      const reached = renumbered(after, names);
      const identity = names.ofWorld(reached);
      if (seen.has(identity)) continue;
      seen.add(identity);
      left.push(reached);
    }
  }
  return { states: seen.size, orders: orders.size };
}

/** A copy for an event to change, except for the states of ranks: an event copies the state that it changes. */
function copyOf({ states, channels, left, order, started, ended }: World): World {
  return {
    states: [...states],
    channels: channels.map((from) => from.map((channel) => [...channel])),
    left: left.map((counts) => [...counts]),
    order: [...order],
    started: [...started],
    ended: [...ended],
  };
}

function copyOfState(state: OrderState): OrderState {
  const { news, undecided, cut, heard, agreed } = state;
  return {
    ...state,
    news: [...news],
    undecided: undecided.map((posts) => [...posts]),
    cut: cut.map((each) => ({ ...each })),
    heard: heard.map((round) => [...round]),
    agreed: [...agreed],
  };
}

/** Numbers for the parts that worlds share, equal for equal contents: most of the exploration compares worlds. */
class Names {
  readonly #ofTexts = new Map<string, number>();
  readonly #known = new WeakMap<object, number>();

  of(part: object | null): number {
    if (part === null) return -1;
    return this.#known.get(part) ?? this.#name(part, part);
  }

  /** Number of a rank's own state, without its knowledge of each rank. */
  ofOwn(state: OrderState): number {
    const known = this.#known.get(state);
    if (known !== undefined) return known;
    const { heard: _heard, undecided: _undecided, ...own } = state;
    return this.#name(state, own);
  }

  /** Registers that a renumbered state has the own state of `from`. */
  moved(from: OrderState, to: OrderState): OrderState {
    this.#known.set(to, this.ofOwn(from));
    return to;
  }

  ofWorld({ states, channels, left, order, started, ended }: World): string {
    const known = states.map((state) => {
      const heard = state.heard.map((round) => round.map((posts) => this.of(posts)).join()).join(';');
      return `${this.ofOwn(state)},${state.undecided.map((posts) => this.of(posts)).join()};${heard}`;
    });
    const messages = channels.map((from) => from.map((channel) => this.ofChannel(channel)).join(';'));
    const progress = `${order.map((turn) => this.of(turn)).join()};${started.join()};${ended.join()}`;
    return `${known.join('|')}#${messages.join('|')}#${left.map((counts) => counts.join()).join(';')}#${progress}`;
  }

  ofChannel(channel: readonly OrderMessage[]): string {
    return channel.map((message) => this.of(message)).join();
  }

  #name(part: object, says: object): number {
    const text = JSON.stringify(says);
    let name = this.#ofTexts.get(text);
    if (name === undefined) this.#ofTexts.set(text, (name = this.#ofTexts.size));
    this.#known.set(part, name);
    return name;
  }
}

/** Renumbers ranks by their look: the numbers of ranks make no difference, so worlds that differ in them alone mostly become the same. */
function renumbered({ states, channels, left, order, started, ended }: World, names: Names): World {
  const looks = states.map((state, rank) => {
    const messages = channels[rank].map((channel) => names.ofChannel(channel)).join(';');
    return `${started[rank]}|${left[rank].join()}|${names.of(state.undecided[rank])}|${names.ofOwn(state)}|${messages}`;
  });
  const ranks = looks.map((_, rank) => rank).sort((a, b) => (looks[a] < looks[b] ? -1 : looks[a] > looks[b] ? 1 : 0));
  return {
    states: ranks.map((rank) =>
      names.moved(states[rank], {
        ...states[rank],
        undecided: ranks.map((other) => states[rank].undecided[other]),
        heard: states[rank].heard.map((round) => ranks.map((other) => round[other])),
      }),
    ),
    channels: ranks.map((from) => ranks.map((to) => channels[from][to])),
    left: ranks.map((rank) => left[rank]),
    order,
    started: ranks.map((rank) => started[rank]),
    ended,
  };
}

type Event = (world: World) => void;

/** The possible events. If one of them neither causes, prevents nor affects others, it stands for all: the time at which it
 *  happens makes no difference. */
function eventsOf(options: OrderWorldOptions, world: World): Event[] {
  const { size, credit } = options;
  const ranks = Array.from({ length: size }, (_, rank) => rank);
  const ends = world.order.flatMap((_, turn) =>
    !world.ended.includes(turn) && world.started.every((count) => count > turn) ? [turn] : [],
  );
  if (ends.length > 0) return [(next) => void next.ended.push(ends[0])];
  const deliveries = ranks.flatMap((from) => ranks.flatMap((to) => (world.channels[from][to].length > 0 ? [{ from, to }] : [])));
  // This delivery does not complete a round that the receiver has answered already, so it only stores the posts. Nothing depends
  // on them before the last ones have come.
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
  const state = copyOfState(world.states[rank]);
  world.states[rank] = state;
  return new OrderAgreement({ rank, size, batchBytes, lowBytes }, state);
}

/** @param parts bytes of the parts; larger ones come last. */
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

/** @returns the order as text. */
function checkEnd({ parts, posts }: OrderWorldOptions, world: World): string {
  const { order, ended, left, channels } = world;
  const total = parts.reduce((sum, each) => sum + each.length, 0) * posts;
  if (left.flat().some((count) => count > 0) || channels.flat(2).length > 0 || order.length !== total || ended.length !== total) {
    throw new Error(`nothing can happen, and not all is done: ${JSON.stringify(world)}`);
  }
  return order.map(({ key, part }) => `${key}.${part}`).join(' ');
}
