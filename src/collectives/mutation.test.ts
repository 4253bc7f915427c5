/** The verifier must be able to fail. Plans are broken at random; every one that it still accepts must come out right in the
 *  interpreter, an independent program, in many random orders. Breakages that are certain must be reported. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom, type Random } from '../base/random.ts';
import { interpret } from '../plan/testing/interpret.ts';
import { collectives, type Location, type Plan, type Program, type Step } from '../plan/ir.ts';
import { oneHost, separateHosts, grid, type Topology } from '../plan/topology.ts';
import { verify } from '../plan/verify.ts';
import { buildPlan } from './build.ts';
import { algorithms } from './registry.ts';

const topologies: readonly Topology[] = [oneHost(2), oneHost(3), oneHost(4), separateHosts(3), grid(2, 2), { hosts: [[0, 2], [1]] }];

interface Mutant {
  readonly plan: Plan;
  readonly what: string;
}

/** All plans that mutants are made of. */
const originals: readonly Plan[] = algorithms.flatMap((algorithm) =>
  collectives
    .filter((collective) => algorithm.build[collective])
    .flatMap((collective) =>
      topologies.flatMap((topology) => {
        const n = topology.hosts.flat().length;
        const even = { collective, topology, count: collective === 'barrier' ? 0 : n * n * 4, pieceCount: 7 };
        // Several slices, one in flight: scratch is used again, and owners have channels of their own.
        const tight = { ...even, count: 40 * n, pieceCount: 16, window: 1, shardCount: 1 };
        const paced = collective === 'all-reduce' && ['fairring', 'direct', 'host-staged'].includes(algorithm.name);
        const requests = paced ? [even, tight] : [even];
        return requests.filter((each) => algorithm.supports?.(each) === undefined).map((each) => buildPlan(algorithm.name, each));
      }),
    ),
);

/** The entry, or a channel's number. */
type Part = 'entry' | number;

/** Replaces one rank's channel, or its entry. */
function withSteps(plan: Plan, { rank, part }: { rank: number; part: Part }, edit: (steps: Step[]) => void): Plan {
  const programs = plan.programs.map((program): Program => {
    if (program.rank !== rank) return program;
    if (part === 'entry') {
      const entry: Step[] = [...program.entry];
      edit(entry);
      // An entry with a step other than a copy is for the structure check to find.
      return { ...program, entry: entry as unknown as Program['entry'] };
    }
    const steps = [...program.channels[part]];
    edit(steps);
    return { ...program, channels: program.channels.with(part, steps) };
  });
  return { ...plan, programs };
}

type Mutation = (steps: Step[], index: number, random: Random) => string | undefined;

const mutations: Readonly<Record<string, Mutation>> = {
  drop: (steps, index) => {
    const [step] = steps.splice(index, 1);
    return `drop ${step.kind}`;
  },
  swap: (steps, index) => {
    if (index + 1 >= steps.length) return undefined;
    [steps[index], steps[index + 1]] = [steps[index + 1], steps[index]];
    return 'swap';
  },
  move: (steps, index, random) => {
    const [step] = steps.splice(index, 1);
    steps.splice(random.integer(steps.length + 1), 0, step);
    return `move ${step.kind}`;
  },
  duplicate: (steps, index) => {
    steps.splice(index, 0, steps[index]);
    return `duplicate ${steps[index].kind}`;
  },
  offset: (steps, index, random) => {
    const by = random.integer(2) === 0 ? 1 : -1;
    const side = random.integer(2) === 0 ? 'source' : 'target';
    const shift = <L extends Location>(location: L): L => ({ ...location, offset: location.offset + by });
    steps[index] = withLocation(steps[index], side, shift);
    return `offset of ${side} ${by}`;
  },
  count: (steps, index) => {
    const step = steps[index];
    if (step.kind !== 'copy' && step.kind !== 'put') return undefined;
    const shorter = <L extends Location>(location: L): L => ({ ...location, count: location.count - 1 });
    steps[index] = withLocation(withLocation(step, 'source', shorter), 'target', shorter);
    return 'count';
  },
  buffer: (steps, index, random) => {
    const buffer = (['data', 'input', 'output', 'scratch', 'mailbox'] as const)[random.integer(5)];
    const side = random.integer(2) === 0 ? 'source' : 'target';
    steps[index] = withLocation(steps[index], side, (location) => ({ ...location, buffer }));
    return `${side} buffer`;
  },
  signal: (steps, index, random) => {
    const step = steps[index];
    if (!('signal' in step)) return undefined;
    steps[index] = { ...step, signal: random.integer(4) };
    return 'signal';
  },
  value: (steps, index, random) => {
    const step = steps[index];
    if (step.kind !== 'wait') return undefined;
    steps[index] = { ...step, value: Math.max(1, step.value + (random.integer(2) === 0 ? 1 : -1)) };
    return 'wait value';
  },
  peer: (steps, index, random) => {
    const step = steps[index];
    if (!('peer' in step)) return undefined;
    steps[index] = { ...step, peer: random.integer(4) };
    return 'peer';
  },
  tree: (steps, index) => {
    const step = steps[index];
    if (step.kind !== 'reduce') return undefined;
    const [first, second] = step.tree;
    steps[index] = { ...step, tree: [second, first, ...step.tree.slice(2)] };
    return 'tree operands';
  },
  final: (steps, index) => {
    const step = steps[index];
    if (step.kind !== 'reduce') return undefined;
    steps[index] = { ...step, final: !step.final };
    return 'final flag';
  },
};

function withLocation(step: Step, side: 'source' | 'target', change: <L extends Location>(location: L) => L): Step {
  if (step.kind === 'put' || step.kind === 'copy') return { ...step, [side]: change(step[side]) };
  if (step.kind !== 'reduce') return step;
  if (side === 'source') return { ...step, sources: [change(step.sources[0]), ...step.sources.slice(1)] };
  return { ...step, targets: [change(step.targets[0]), ...step.targets.slice(1)] };
}

/** One to two random mutations; undefined when nothing changed. */
function mutate(random: Random): Mutant | undefined {
  let plan = originals[random.integer(originals.length)];
  const original = JSON.stringify(plan.programs);
  const what: string[] = [];
  const times = 1 + random.integer(2);
  for (let time = 0; time < times; time++) {
    const rank = random.integer(plan.programs.length);
    const { entry, channels } = plan.programs[rank];
    const part: Part = entry.length > 0 && random.integer(2) === 0 ? 'entry' : random.integer(channels.length);
    const { length } = part === 'entry' ? entry : channels[part];
    if (length === 0) continue;
    const names = Object.keys(mutations);
    const name = names[random.integer(names.length)];
    plan = withSteps(plan, { rank, part }, (steps) => {
      const done = mutations[name](steps, random.integer(length), random);
      if (done !== undefined) what.push(`rank ${rank} ${part === 'entry' ? part : `channel ${part}`}: ${done}`);
    });
  }
  if (JSON.stringify(plan.programs) === original) return undefined;
  return { plan, what: `${plan.algorithm} ${plan.request.collective}: ${what.join(', ')}` };
}

describe('the verifier under mutation', () => {
  it('accepts the originals', () => {
    expect(originals.flatMap((plan) => verify(plan).problems)).toEqual([]);
  });

  it('accepts no mutant that any order of events gets wrong', () => {
    let accepted = 0;
    fc.assert(
      fc.property(fc.integer({ min: 0 }), (seed) => {
        const mutant = mutate(seededRandom(seed));
        if (mutant === undefined || !verify(mutant.plan).ok) return;
        accepted += 1;
        for (let run = 0; run < 12; run++) {
          const { problems } = interpret(mutant.plan, seededRandom(seed + run));
          if (problems.length > 0) throw new Error(`${mutant.what}: accepted, and ${problems.join('; ')}`);
        }
      }),
      { numRuns: 4000 },
    );
    // Some mutations are harmless (two independent steps swapped): a verifier that refused all would prove nothing.
    expect(accepted).toBeGreaterThan(40);
  });

  it('refuses plans that random orders find wrong, and many that they miss', () => {
    const random = seededRandom(7);
    const tally = { mutants: 0, refused: 0, wrongInSomeOrder: 0 };
    while (tally.mutants < 1500) {
      const mutant = mutate(random);
      if (mutant === undefined) continue;
      const { problems } = verify(mutant.plan);
      // A program that leaves its buffers, or the like, cannot be run.
      if (
        problems.some((problem) =>
          /outside the buffer|names |operands|postfix|overlap|itself|another host|the value|entry steps|a mailbox/.test(problem),
        )
      )
        continue;
      tally.mutants += 1;
      if (problems.length > 0) tally.refused += 1;
      const wrong = Array.from({ length: 6 }, () => interpret(mutant.plan, random)).some(({ ok }) => !ok);
      if (wrong) tally.wrongInSomeOrder += 1;
      expect(wrong && problems.length === 0, mutant.what).toBe(false);
    }
    expect(tally.refused).toBeGreaterThan(tally.mutants * 0.5);
    // The interpreter is a real judge: it can show most of the refused plans to be wrong.
    expect(tally.wrongInSomeOrder).toBeGreaterThan(tally.refused * 0.5);
  });

  /** Breakages after which no order of events can come out right. */
  const certain: Readonly<Record<string, (step: Step) => readonly Step[] | undefined>> = {
    'a missing put, signal, copy or reduction': (step) => (step.kind === 'wait' || step.kind === 'flush' ? undefined : []),
    'a signal raised twice': (step) => (step.kind === 'signal' || step.kind === 'put' ? [step, step] : undefined),
    'a wait for more than is raised': (step) => (step.kind === 'wait' ? [{ ...step, value: step.value + 1_000 }] : undefined),
    'swapped operands': (step) => {
      if (step.kind !== 'reduce') return undefined;
      const [first, second, ...rest] = step.tree;
      return [{ ...step, tree: [second, first, ...rest] }];
    },
    'a wrong final flag': (step) => (step.kind === 'reduce' ? [{ ...step, final: !step.final }] : undefined),
    'a source one element off': (step) =>
      step.kind === 'put' || step.kind === 'copy'
        ? [withLocation(step, 'source', (source) => ({ ...source, offset: source.offset + 1 }))]
        : undefined,
    'a target one element off': (step) =>
      step.kind === 'put' || step.kind === 'copy'
        ? [withLocation(step, 'target', (target) => ({ ...target, offset: target.offset + 1 }))]
        : undefined,
  };
  it.each(Object.keys(certain))('refuses every plan with %s', (name) => {
    let tried = 0;
    // Swapped operands are no fault where any order is allowed.
    for (const plan of originals.filter(({ association }) => name !== 'swapped operands' || association === 'canonical')) {
      for (const { rank, entry, channels } of plan.programs) {
        const parts: [Part, readonly Step[]][] = [
          ['entry', entry],
          ...channels.map((steps, channel): [Part, readonly Step[]] => [channel, steps]),
        ];
        for (const [part, steps] of parts) {
          steps.forEach((step, index) => {
            const replacement = certain[name](step);
            if (replacement === undefined) return;
            tried += 1;
            const mutant = withSteps(plan, { rank, part }, (copy) => copy.splice(index, 1, ...replacement));
            expect(verify(mutant).ok, `${plan.algorithm} ${plan.request.collective} rank ${rank} part ${part} step ${index}`).toBe(false);
          });
        }
      }
    }
    expect(tried).toBeGreaterThan(50);
  });
});
