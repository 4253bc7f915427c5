/** Worlds whose ranks go on without those that they lose, and with those that join later: ranks, links and the job's store in this process, on virtual time, in the order that a
 *  seed decides. Every rank adds up what all give in each step, shrinks its group when a rank is lost, and grows it when one waits. Whatever is killed, stopped or cut,
 *  and whenever: the ranks that end well end in one group, with the same total. */
import { isShoalError, type ShoalError } from '../../src/base/errors.ts';
import { seededRandom, type Random } from '../../src/base/random.ts';
import { SeededWorld, type Role } from '../../src/base/testing/seeded-world.ts';
import type { ProcessGroup } from '../../src/group/caller/types.ts';
import { InProcessSite, type InProcessOptions } from '../../src/group/testing/in-process-world.ts';
import { Store, type StoreOperation, type StoreResult, type StoreWait } from '../../src/store/store.ts';

export interface ShrinkingPlan {
  readonly seed: number;
  readonly ranks: number;
  readonly steps: number;
  readonly path: InProcessOptions;
  readonly delayedOneIn: number;
  readonly delayMs: number;
  readonly faults: readonly Fault[];
  /** Events after all ranks have joined at which a further one begins to. */
  readonly joins: readonly number[];
  /** Ranks change by `reconfigure` alone, each time in reverse order; some abort their group. */
  readonly reconfigures: boolean;
}

/** `at`: events after all ranks have joined. */
type Fault = { readonly at: number; readonly rank: number } & (
  | { readonly kind: 'kill' }
  | { readonly kind: 'stop'; readonly forMs: number }
  | { readonly kind: 'cut'; readonly index: number }
  | { readonly kind: 'abort' }
);

const timeoutMs = 5000;
const limitMs = 600_000;

export function shrinkingWorldOf(seed: number): ShrinkingPlan {
  const random = seededRandom(seed);
  const pick = <T>(all: readonly T[]): T => all[random.integer(all.length)];
  const ranks = pick([2, 3, 3, 4, 4, 5, 6]);
  const each = Array.from({ length: ranks }, (_, rank) => rank);
  const path = pick<InProcessOptions>([
    {},
    { fastPath: true },
    { kind: 'network' },
    { kind: 'network', fastPath: true, hostIds: each.map((rank) => `host ${rank}`) },
    { hostIds: each.map((rank) => (rank < ranks / 2 ? 'a' : 'b')) },
  ]);
  const [delayedOneIn, delayMs] = pick([
    [0, 0],
    [4, 1],
    [8, 50],
  ]);
  const faults = Array.from({ length: 1 + random.integer(4) }, () => faultOf(random, ranks));
  const steps = 3 + random.integer(8);
  return { seed, ranks, steps, path, delayedOneIn, delayMs, faults, joins: [], reconfigures: false };
}

/** The same, and up to three ranks join, of which some are killed, stopped or cut off as well. */
export function growingWorldOf(seed: number): ShrinkingPlan {
  const plan = shrinkingWorldOf(seed);
  const random = seededRandom(seed + 1_000_003);
  const joins = Array.from({ length: 1 + random.integer(3) }, () => Math.floor(2 ** (random.next() * 9)));
  const faults = [...plan.faults, ...Array.from({ length: random.integer(3) }, () => faultOf(random, plan.ranks + joins.length))];
  const path = plan.path.hostIds === undefined ? plan.path : { ...plan.path, hostIds: [...plan.path.hostIds, 'a', 'c', 'host 0'] };
  return { ...plan, steps: 6 + random.integer(12), path, faults, joins };
}

/** The same, and the ranks reconfigure their group, of which up to three are aborted. */
export function reconfiguringWorldOf(seed: number): ShrinkingPlan {
  const plan = growingWorldOf(seed);
  const random = seededRandom(seed + 2_000_003);
  const aborts = Array.from({ length: random.integer(4) }, () => ({
    at: Math.floor(2 ** (random.next() * 11)),
    rank: random.integer(plan.ranks + plan.joins.length),
    kind: 'abort' as const,
  }));
  return { ...plan, faults: [...plan.faults, ...aborts], reconfigures: true };
}

function faultOf(random: Random, ranks: number): Fault {
  const moment = { at: Math.floor(2 ** (random.next() * 11)), rank: random.integer(ranks) };
  const kind = random.integer(5);
  if (kind === 0) return { ...moment, kind: 'stop', forMs: [20, 3000, 20_000][random.integer(3)] };
  if (kind === 1) return { ...moment, kind: 'cut', index: random.integer(8) };
  return { ...moment, kind: 'kill' };
}

/** The end of a rank: in a group of these ranks with this total, or with an error; undefined: it was killed. */
type End = { readonly ranks: readonly number[]; readonly total: number; readonly step: number } | ShoalError | undefined;

/** A client whose calls and answers take turns. */
class DistantStore extends Store {
  readonly #near: Role;
  readonly #far: Role;
  readonly #store: Store;

  constructor(near: Role, far: Role, store: Store) {
    super();
    this.#near = near;
    this.#far = far;
    this.#store = store;
  }

  async start(operation: StoreOperation, wait?: StoreWait): Promise<StoreResult> {
    await new Promise<void>((resolve) => this.#far.turn(resolve));
    const result = await this.#store.start(operation, wait).then(
      (value) => () => value,
      (thrown: unknown) => () => {
        throw thrown;
      },
    );
    await new Promise<void>((resolve) => this.#near.turn(resolve));
    return result();
  }

  async close(): Promise<void> {}
}

/** @returns what went wrong; nothing: all is well. */
export async function runShrinkingWorld(
  plan: ShrinkingPlan,
): Promise<{ problems: string[]; shrinks: number; grows: number; trace: string }> {
  const { seed, ranks, path, delayedOneIn, delayMs, faults, joins, reconfigures } = plan;
  const world = new SeededWorld({ random: seededRandom(seed), delayedOneIn, delayMs });
  const roles = Array.from({ length: ranks + joins.length }, (_, rank) => world.role(`rank ${rank}`));
  const server = world.role('store');
  const site = new InProcessSite(ranks, {
    ...path,
    seed,
    settings: { timeoutMs, calibration: 'assume' },
    role: (rank) => roles[rank],
    wrapStore: (store, rank) => new DistantStore(roles[rank], server, store),
  });
  let [joined, shrinks, grows] = [0, 0, 0];
  /** The group of each rank. */
  const groups: ProcessGroup[] = [];
  const starts: ((isBegun: boolean) => void)[] = [];
  const problems: string[] = [];
  const plant = (): void => {
    for (const [index, at] of joins.entries()) world.at(world.events + at, () => starts[index](true));
    for (const fault of faults) world.at(world.events + fault.at, () => hit(fault));
  };
  const hit = (fault: Fault): void => {
    const role = roles[fault.rank];
    if (role.ended) return;
    if (fault.kind === 'kill') role.end();
    if (fault.kind === 'cut') site.cut(fault.rank, fault.index);
    if (fault.kind === 'abort' && !role.stopped) abort(groups[fault.rank]);
    if (fault.kind !== 'stop') return;
    role.stop();
    world.time.setTimer(fault.forMs, () => role.resume());
  };
  const run = async (rank: number): Promise<End> => {
    if (rank >= ranks && !(await new Promise<boolean>((resolve) => starts.push(resolve)))) return undefined;
    const totals = new Float64Array(1);
    let [step, isInStep] = [0, rank < ranks];
    let group: ProcessGroup;
    try {
      group = groups[rank] = await site.start(rank);
    } catch (thrown) {
      if (isShoalError(thrown)) return thrown;
      throw thrown;
    }
    if (++joined === ranks) plant();
    try {
      while (step <= plan.steps) {
        try {
          if (!isInStep) {
            const [furthest, root] = [new Int32Array([step]), new Int32Array([group.rank])];
            await group.maxLoc(furthest, root);
            await group.broadcast(totals, { root: root[0] });
            [step] = furthest;
            isInStep = true;
            continue;
          }
          if (step === plan.steps) {
            await group.barrier();
            break;
          }
          const data = new Float32Array(50).fill(rank + 1);
          await group.allReduce(data);
          const expected = group.globalRanks.reduce((sum, each) => sum + each + 1, 0);
          if (data.some((each) => each !== expected)) problems.push(`rank ${rank} got ${data[0]} for ${expected} in step ${step}`);
          totals[0] += step + 1;
          step++;
          if (joins.length === 0) continue;
          const waiting = new Int32Array([group.waiting]);
          await group.allReduce(waiting, { op: 'max' });
          if (waiting[0] === 0) continue;
          const { size } = group;
          group = groups[rank] = await (reconfigures ? reverse(group, new Set()) : group.grow({ timeoutMs }));
          if (group.size > size) grows++;
          isInStep = false;
        } catch (thrown) {
          if (!isShoalError(thrown) || !['peer-lost', 'timeout', 'aborted'].includes(thrown.code)) throw thrown;
          group = groups[rank] = await goOn(group, thrown, reconfigures);
          shrinks++;
          isInStep = false;
        }
      }
    } catch (thrown) {
      if (isShoalError(thrown)) return thrown;
      throw thrown;
    } finally {
      void group.destroy({ timeoutMs: 1000 });
    }
    return { ranks: group.globalRanks, total: totals[0], step };
  };
  const ends = roles.map((role, rank) => {
    role.onEnd(() => site.crash(rank));
    return Promise.race([run(rank), new Promise<undefined>((resolve) => role.onEnd(() => resolve(undefined)))]);
  });
  // Roles that have not begun by then come too late.
  void Promise.all(ends.slice(0, ranks)).then(() => starts.forEach((start) => start(false)));
  try {
    judge(await world.until(Promise.all(ends), limitMs), plan, problems);
  } catch (thrown) {
    problems.push(String(thrown));
  }
  return { problems, shrinks, grows, trace: world.trace };
}

/** A rank that does not answer is left out; what has not worked because of another one is tried again without that. */
async function goOn(group: ProcessGroup, thrown: ShoalError, reconfigures: boolean): Promise<ProcessGroup> {
  const exclude = new Set<number>();
  for (let failure = thrown; ;) {
    const silent = failure.peer === undefined ? -1 : group.globalRanks.indexOf(failure.peer);
    if (failure.code === 'timeout' && silent >= 0 && silent !== group.rank) exclude.add(silent);
    try {
      return await (reconfigures ? reverse(group, exclude) : group.shrink({ timeoutMs, exclude: [...exclude] }));
    } catch (error) {
      if (!isShoalError(error) || error.code !== 'timeout' || exclude.size + 1 >= group.size) throw error;
      failure = error;
    }
  }
}

function reverse(group: ProcessGroup, exclude: ReadonlySet<number>): Promise<ProcessGroup> {
  const ranks = group.globalRanks.map((_, rank) => rank).filter((rank) => !exclude.has(rank));
  return group.reconfigure({ ranks: ranks.toReversed(), timeoutMs });
}

/** Ends the rank's group, unless it has left that, or has none yet. */
function abort(group: ProcessGroup | undefined): void {
  try {
    group?.abort('a fault');
  } catch (thrown) {
    if (!isShoalError(thrown) || thrown.code !== 'closed') throw thrown;
  }
}

function judge(ends: readonly End[], { ranks: begun, steps, faults }: ShrinkingPlan, problems: string[]): void {
  const well = ends.flatMap((end, rank) => (end !== undefined && 'ranks' in end ? [{ rank, ...end }] : []));
  for (const { rank, ranks, total, step } of well) {
    // A rank that has passed the last barrier may have left when others still lose one there.
    const [few, many] = [ranks, well[0].ranks].toSorted((a, b) => a.length - b.length);
    if (!few.every((each) => many.includes(each)))
      problems.push(`rank ${rank} ends in ranks ${ranks.join()}, rank ${well[0].rank} in ${well[0].ranks.join()}`);
    if (total !== (steps * (steps + 1)) / 2 || step !== steps) problems.push(`rank ${rank} ends with ${total} after ${step} steps`);
    if (!ranks.includes(rank)) problems.push(`rank ${rank} ends in a group without itself: ${ranks.join()}`);
  }
  const onlyKills = faults.every(({ kind }) => kind === 'kill' || kind === 'abort');
  for (const [rank, end] of ends.entries()) {
    if (end === undefined || 'ranks' in end) continue;
    // Only who was stopped or cut off is left out, and who has been left alone by those.
    if (onlyKills && rank < begun) problems.push(`rank ${rank} has not gone on: ${end.code}: ${end.message}`);
  }
}
