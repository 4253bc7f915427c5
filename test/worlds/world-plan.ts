/** The plan of a world: plain data, for which a seed stands. Worlds are made, and made smaller, here. */
import { seededRandom, type Random } from '../../src/base/random.ts';
import { stepCounts, type Step } from '../../src/group/testing/random-program.ts';
import { ReduceOp } from '../../src/memory/reduce-op.ts';

export const paths = ['engine', 'host', 'network', 'network fast path', 'two hosts'] as const;
export type Path = (typeof paths)[number];

/** The next action of all ranks. */
export type Action =
  | ({ readonly on: 'group' } & Step)
  /** A group of these ranks, one collective on it, and its end. */
  | { readonly on: 'subgroup'; readonly members: readonly number[]; readonly step: Step }
  /** Every rank sends this many numbers to its right, and receives as many. */
  | { readonly on: 'ring'; readonly count: number }
  /** Set, add, compareSet and wait on the job's store. */
  | { readonly on: 'store' }
  /** A call to the parameter servers: a round of the parameter of this many numbers, or of rows of a matrix. */
  | { readonly on: 'servers'; readonly call: ServerCall; readonly count: number };

export type ServerCall = 'push-pull' | 'push' | 'pull' | 'rows';
/** Numbers of elements of a world's parameters. */
export const parameterCounts = [1, 7, 5000] as const;

/** Number of events before something happens: events of the world, or since all ranks of the first generation have joined. */
interface Moment {
  readonly at: number;
  readonly after: 'start' | 'joined';
}

export type Fault = Moment & Harm;

type Harm =
  /** A fault of the process that then runs under that name: `rank 2`, `server 0`, `standby 0`, `launcher 1`. */
  | { readonly kind: 'kill'; readonly who: string }
  | { readonly kind: 'exit'; readonly who: string; /** Default: 3. */ readonly code?: number }
  | { readonly kind: 'stop'; readonly who: string; readonly forMs: number }
  /** A cut of one of its connections: between ranks, to the job's store, or between workers and servers. */
  | {
      readonly kind: 'cut';
      readonly at: number;
      readonly who: string;
      readonly what: 'link' | 'store' | 'servers';
      readonly index: number;
    };

export interface WorldPlan {
  readonly seed: number;
  readonly ranks: number;
  /** Number of nodes, each with a launcher; the first of two has the larger half of the ranks. Default 1. */
  readonly nodes?: 1 | 2;
  readonly path: Path;
  readonly servers: number;
  readonly replicas: 1 | 2;
  readonly maxRestarts: number;
  /** One turn in this many takes time, up to `delayMs`; 0: none does. */
  readonly delayedOneIn: number;
  readonly delayMs: number;
  readonly actions: readonly Action[];
  /** A rank that makes another call in place of this action, or no more calls from it on. */
  readonly differs: { readonly rank: number; readonly at: number; readonly how: 'calls' | 'leaves' } | undefined;
  readonly faults: readonly Fault[];
}

const pick = <T>(random: Random, all: readonly T[]): T => all[random.integer(all.length)];
const times = <T>(count: number, of: (index: number) => T): T[] => Array.from({ length: count }, (_, index) => of(index));

/** The world that a seed stands for. */
export function worldOf(seed: number): WorldPlan {
  const random = seededRandom(seed);
  const ranks = pick(random, [2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 8]);
  // Heartbeats make long waits of large worlds expensive.
  const servers = ranks > 5 ? 0 : pick(random, [0, 0, 1, 1, 2]);
  const replicas = servers > 0 && random.integer(2) === 0 ? 2 : 1;
  // Long delays are rare: a world whose messages all take seconds does not come up within its limits.
  const [delayedOneIn, delayMs] = pick(random, [
    [0, 0],
    [0, 0],
    [4, 1],
    [8, 50],
    [200, 2500],
  ]);
  const length = 1 + random.integer(ranks > 4 ? 6 : 12);
  const faultCount = pick(random, [0, 1, 1, 1, 2, 3]);
  const plan: WorldPlan = {
    seed,
    ranks,
    path: pick(random, paths),
    servers,
    replicas,
    maxRestarts: pick(random, [0, 0, 1, 1, 2]),
    delayedOneIn,
    delayMs,
    actions: times(length, () => actionOf(random, { ranks, servers })),
    differs:
      random.integer(8) === 0
        ? { rank: random.integer(ranks), at: random.integer(length), how: pick(random, ['calls', 'leaves'] as const) }
        : undefined,
    faults: times(faultCount, () => faultOf(random, { ranks, servers, replicas })),
  };
  return random.integer(5) === 0 ? onTwoNodes(plan, random) : plan;
}

function onTwoNodes(plan: WorldPlan, random: Random): WorldPlan {
  if (random.integer(3) > 0) return { ...plan, nodes: 2 };
  const at = Math.floor(2 ** (4 + random.next() * 7));
  const moment = { at, after: 'start', who: `launcher ${random.integer(2)}` } as const;
  const harm = pick<Fault>(random, [
    { kind: 'kill', ...moment },
    { kind: 'stop', ...moment, forMs: pick(random, [20, 3000, 20_000]) },
    { kind: 'cut', ...moment, what: 'store', index: random.integer(8) },
  ]);
  return { ...plan, nodes: 2, faults: [...plan.faults, harm] };
}

function actionOf(random: Random, { ranks, servers }: { ranks: number; servers: number }): Action {
  const kind = random.integer(12);
  if (kind === 0) return { on: 'store' };
  if (kind === 1) return { on: 'ring', count: pick(random, stepCounts) };
  if (kind === 2) {
    const members = times(ranks, (rank) => rank).filter(() => random.integer(3) > 0);
    return { on: 'subgroup', members: members.length === 0 ? [0] : members, step: stepOf(random, ranks, Math.max(1, members.length)) };
  }
  if (kind <= 5 && servers > 0) {
    const call = pick<ServerCall>(random, ['push-pull', 'push-pull', 'push', 'pull', 'rows']);
    return { on: 'servers', call, count: pick(random, parameterCounts) };
  }
  return { on: 'group', ...stepOf(random, ranks, ranks) };
}

function stepOf(random: Random, ranks: number, size: number): Step {
  return {
    kind: pick<Step['kind']>(random, ['all-reduce', 'all-reduce', 'broadcast', 'all-gather', 'reduce-scatter', 'barrier']),
    count: pick(random, stepCounts),
    op: pick<Step['op']>(random, [ReduceOp.Sum, ReduceOp.Max]),
    root: random.integer(size),
    plain: times(ranks, () => random.integer(2) === 0),
    late: times(ranks, () => (random.integer(2) === 0 ? 0 : random.integer(6))),
    awaited: times(ranks, () => random.integer(2) === 0),
  };
}

function faultOf(random: Random, { ranks, servers, replicas }: { ranks: number; servers: number; replicas: number }): Fault {
  const rank = `rank ${random.integer(ranks)}`;
  const server = `${replicas === 2 && random.integer(3) === 0 ? 'standby' : 'server'} ${random.integer(Math.max(1, servers))}`;
  const who = servers > 0 && random.integer(3) === 0 ? server : rank;
  const after = random.integer(3) === 0 ? 'start' : 'joined';
  const at = Math.floor(after === 'start' ? 2 ** (4 + random.next() * 7) : 2 ** (random.next() * 9));
  switch (random.integer(6)) {
    case 0:
      return { kind: 'stop', at, after, who, forMs: pick(random, [20, 3000, 20_000]) };
    case 1:
      return {
        kind: 'cut',
        at,
        after,
        who,
        what: pick(random, servers > 0 ? ['link', 'store', 'servers'] : ['link', 'store']),
        index: random.integer(8),
      };
    case 2:
      return { kind: 'exit', at, after, who: rank };
    default:
      return { kind: 'kill', at, after, who };
  }
}

/** Worlds in which a little less happens, those with the least first. */
export function* smallerWorlds(plan: WorldPlan): Generator<WorldPlan> {
  const { faults, actions, ranks, servers } = plan;
  for (const k of faults.keys()) yield { ...plan, faults: faults.filter((_, index) => index !== k) };
  if (plan.differs !== undefined) yield { ...plan, differs: undefined };
  if (servers > 0 && !actions.some(({ on }) => on === 'servers')) yield { ...plan, servers: 0, replicas: 1 };
  if (servers > 1) yield { ...plan, servers: 1 };
  if (plan.replicas > 1) yield { ...plan, replicas: 1 };
  if (plan.nodes === 2) yield { ...plan, nodes: 1, faults: faults.filter(({ who }) => !who.startsWith('launcher')) };
  if (plan.maxRestarts > 0) yield { ...plan, maxRestarts: 0 };
  if (plan.delayedOneIn > 0) yield { ...plan, delayedOneIn: 0, delayMs: 0 };
  if (ranks > 2) yield withRanks(plan, ranks - 1);
  if (actions.length > 3) yield { ...plan, actions: actions.slice(0, actions.length >> 1) };
  for (const k of actions.keys()) {
    if (plan.differs === undefined || plan.differs.at > k) yield withoutAction(plan, k);
  }
  for (const [k, fault] of faults.entries()) {
    if (fault.at > 1) yield { ...plan, faults: faults.with(k, { ...fault, at: fault.at >> 1 }) };
  }
}

function withRanks(plan: WorldPlan, ranks: number): WorldPlan {
  const shrunk = (step: Step, size: number): Step => ({ ...step, root: Math.min(step.root, size - 1) });
  return {
    ...plan,
    ranks,
    actions: plan.actions.map((action) => {
      if (action.on === 'group') return { ...action, ...shrunk(action, ranks) };
      if (action.on !== 'subgroup') return action;
      const members = action.members.filter((rank) => rank < ranks);
      return { ...action, members: members.length === 0 ? [0] : members, step: shrunk(action.step, Math.max(1, members.length)) };
    }),
    differs: plan.differs !== undefined && plan.differs.rank < ranks ? plan.differs : undefined,
    // A fault of the rank that is left out hits the last one.
    faults: plan.faults.map((fault) => (fault.who === `rank ${ranks}` ? { ...fault, who: `rank ${ranks - 1}` } : fault)),
  };
}

function withoutAction(plan: WorldPlan, at: number): WorldPlan {
  const { differs } = plan;
  const actions = plan.actions.filter((_, index) => index !== at);
  return { ...plan, actions, differs: differs && { ...differs, at: differs.at > at ? differs.at - 1 : differs.at } };
}
