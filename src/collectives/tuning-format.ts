/** Reads the text of a tuning file (tuning.ts). Kept apart from the code that uses a tuning: without such a file no program needs this. */
import { ShoalError } from '../base/errors.ts';
import {
  anyText,
  count,
  flag,
  integer,
  list,
  literal,
  nameOf,
  nullable,
  number,
  object,
  optional,
  record,
  type Shape,
  type ValueOf,
} from '../base/schema.ts';
import type { CostModel } from '../plan/cost.ts';
import { algorithms } from './registry.ts';
import { collectives } from '../plan/ir.ts';

/** Incremented when a field changes its meaning or goes away. */
const tuningVersion = 1;
/** Limit of the file's size; a larger file is not a tuning file. */
export const tuningBytesMax = 2 ** 24;

const strict = <F extends Readonly<Record<string, Shape<unknown>>>>(fields: F) => object(fields, { strict: true });
const rate = number({ min: 0 });
const costModel: Shape<CostModel> = strict({
  networkLatency: rate,
  networkOverhead: rate,
  networkByte: rate,
  hostLatency: rate,
  hostByte: rate,
  selfByte: rate,
  reduceByte: rate,
});

const range = strict({
  /** Bytes, inclusive. */
  from: count,
  /** Bytes, exclusive; null: no end, written by people who know better than the measurements. */
  to: nullable(integer({ min: 1 })),
  algorithm: anyText,
});

const measurement = strict({
  bytes: count,
  /** Median time by algorithm, microseconds. */
  timesUs: record(rate),
});

const tunedWorld = strict({
  /** Ranks per host, in order of hosts. */
  hosts: list(integer({ min: 1 }), { min: 1 }),
  /** True if the ranks of a world of one host could load from and store to each other's memory. */
  loadStore: flag,
  order: literal('canonical', 'relaxed'),
  /** Seconds, and seconds per byte; absent where nothing had to be measured. */
  rates: optional(costModel),
  choices: list(
    strict({
      collective: literal(...collectives),
      /** Ascending, without overlap. */
      ranges: list(range, { min: 1 }),
      measured: list(measurement),
    }),
  ),
});

const tuningFile = strict({
  schema: literal('shoal-tuning'),
  version: literal(tuningVersion),
  /** Version of the package that wrote it. */
  shoal: anyText,
  worlds: list(tunedWorld),
});

export type TunedWorld = ValueOf<typeof tunedWorld>;
export type Tuning = ValueOf<typeof tuningFile>;

/** @param source origin of the text, for messages.
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
  const problem = tuningFile.problem(value);
  if (problem !== undefined) return fail(nameOf(problem));
  const tuning = value as Tuning;
  for (const { choices } of tuning.worlds) {
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
  return tuning;
}
