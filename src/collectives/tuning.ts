/** What `shoal tune` has measured: per shape of a world its rates, and per collective and range of sizes the algorithm that
 *  was fastest. Versioned JSON; everything in it is checked before it is used. It must not know files or how one measures. */
import * as z from 'zod';
import { ShoalError } from '../base/errors.ts';
import type { CostModel } from '../plan/cost.ts';
import type { Topology } from '../plan/topology.ts';
import { collectives } from './build.ts';
import { algorithms } from './registry.ts';
import type { SelectionRule } from './select.ts';

/** Incremented when a field changes its meaning or goes away. */
export const tuningVersion = 1;

const rate = z.number().nonnegative();
const costModel: z.ZodType<CostModel> = z.strictObject({
  networkLatency: rate,
  networkOverhead: rate,
  networkByte: rate,
  hostLatency: rate,
  hostByte: rate,
  selfByte: rate,
  reduceByte: rate,
});

const range = z.strictObject({
  /** Bytes, inclusive. */
  from: z.int().min(0),
  /** Bytes, exclusive; null: no end, which is for who knows better than what was measured. */
  to: z.int().min(1).nullable(),
  algorithm: z.string(),
});

const measurement = z.strictObject({
  bytes: z.int().min(0),
  /** Median time by algorithm, microseconds. */
  timesUs: z.record(z.string(), z.number().nonnegative()),
});

const tunedWorld = z.strictObject({
  /** Ranks per host, in order of hosts. */
  hosts: z.array(z.int().min(1)).min(1),
  /** Of a world of one host: whether its ranks could load from and store to each other's memory. */
  loadStore: z.boolean(),
  order: z.enum(['canonical', 'relaxed']),
  /** Seconds, and seconds per byte; absent where nothing had to be measured. */
  rates: costModel.optional(),
  choices: z.array(
    z.strictObject({
      collective: z.enum([
        'all-reduce',
        'broadcast',
        'reduce',
        'all-gather',
        'gather',
        'scatter',
        'reduce-scatter',
        'all-to-all',
        'barrier',
      ]),
      /** Ascending, without overlap. */
      ranges: z.array(range).min(1),
      measured: z.array(measurement),
    }),
  ),
});

const tuningFile = z.strictObject({
  schema: z.literal('shoal-tuning'),
  version: z.literal(tuningVersion),
  /** Version of the package that wrote it. */
  shoal: z.string(),
  worlds: z.array(tunedWorld),
});

export type TunedWorld = z.infer<typeof tunedWorld>;
export type Tuning = z.infer<typeof tuningFile>;

/** What tells worlds apart. */
export interface WorldShape {
  readonly topology: Topology;
  /** Looked at only where there is one host. */
  readonly loadStore: boolean;
  readonly order: 'canonical' | 'relaxed';
}

/** @param source where the text is from, for messages.
 *  @throws ShoalError `config` naming the part that is wrong. */
export function parseTuning(text: string, source: string): Tuning {
  const fail = (problem: string, cause?: unknown): never => {
    throw new ShoalError('config', `tuning file ${source}: ${problem}; write a new one with shoal tune`, { cause });
  };
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (thrown) {
    return fail('it is not JSON', thrown);
  }
  const parsed = tuningFile.safeParse(value);
  if (!parsed.success) {
    const issue = parsed.error.issues.at(0);
    return fail(`${issue?.path.join('.') || 'it'}: ${issue?.message ?? 'malformed'}`);
  }
  for (const { choices } of parsed.data.worlds) {
    for (const { collective, ranges } of choices) {
      let end = 0;
      for (const { from, to, algorithm } of ranges) {
        if (from < end || (to !== null && to <= from)) fail(`the ranges of ${collective} must ascend and not overlap`);
        end = to ?? Number.POSITIVE_INFINITY;
        const able = algorithms.filter((each) => each.build[collective]).map(({ name }) => name);
        if (!able.includes(algorithm)) fail(`unknown algorithm '${algorithm}' of ${collective}; known are ${able.join(', ')}`);
      }
    }
  }
  return parsed.data;
}

export function tunedWorldOf(tuning: Tuning | undefined, shape: WorldShape): TunedWorld | undefined {
  return tuning?.worlds.find((world) => sameShape(world, shape));
}

/** What was measured on a world of that shape, as rules. */
export function tunedRules(tuning: Tuning | undefined, shape: WorldShape): SelectionRule[] {
  const { choices = [] } = tunedWorldOf(tuning, shape) ?? {};
  return choices.flatMap(({ collective, ranges }) =>
    ranges.map(({ from, to, algorithm }) => ({
      collective,
      bytesFrom: from,
      bytesTo: to ?? Number.POSITIVE_INFINITY,
      ranksMax: Number.POSITIVE_INFINITY,
      algorithm,
    })),
  );
}

/** The tuning with what is known of one more world; what it said of that shape and those collectives before is replaced. */
export function withTunedWorld(tuning: Tuning | undefined, world: TunedWorld, shoal: string): Tuning {
  const before = tuning?.worlds ?? [];
  const same = before.find((each) => isSame(each, world));
  const fresh = new Set(world.choices.map(({ collective }) => collective));
  const kept = same?.choices.filter(({ collective }) => !fresh.has(collective)) ?? [];
  const order = (collective: (typeof world.choices)[number]['collective']): number => collectives.indexOf(collective);
  const merged = {
    ...world,
    choices: [...kept, ...world.choices].sort((a, b) => order(a.collective) - order(b.collective)),
  };
  return { schema: 'shoal-tuning', version: tuningVersion, shoal, worlds: [...before.filter((each) => each !== same), merged] };
}

function isSame(a: TunedWorld, b: TunedWorld): boolean {
  return a.hosts.join() === b.hosts.join() && a.order === b.order && (a.hosts.length > 1 || a.loadStore === b.loadStore);
}

function sameShape(world: TunedWorld, { topology, loadStore, order }: WorldShape): boolean {
  return isSame(world, { hosts: topology.hosts.map((host) => host.length), loadStore, order, choices: [] });
}
