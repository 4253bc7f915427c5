/** Reads the text of a tuning file (tuning.ts). Apart from what uses a tuning: without such a file nobody needs this. */
import { en } from 'zod/locales';
import * as z from 'zod/mini';
import { ShoalError } from '../base/errors.ts';
import type { CostModel } from '../plan/cost.ts';
import { algorithms } from './registry.ts';

/** Incremented when a field changes its meaning or goes away. */
const tuningVersion = 1;
/** A larger file is none. */
export const tuningBytesMax = 2 ** 24;

const rate = z.number().check(z.nonnegative());
const costModel: z.ZodMiniType<CostModel> = z.strictObject({
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
  from: z.int().check(z.gte(0)),
  /** Bytes, exclusive; null: no end, which is for who knows better than what was measured. */
  to: z.nullable(z.int().check(z.gte(1))),
  algorithm: z.string(),
});

const measurement = z.strictObject({
  bytes: z.int().check(z.gte(0)),
  /** Median time by algorithm, microseconds. */
  timesUs: z.record(z.string(), z.number().check(z.nonnegative())),
});

const tunedWorld = z.strictObject({
  /** Ranks per host, in order of hosts. */
  hosts: z.array(z.int().check(z.gte(1))).check(z.minLength(1)),
  /** Of a world of one host: whether its ranks could load from and store to each other's memory. */
  loadStore: z.boolean(),
  order: z.enum(['canonical', 'relaxed']),
  /** Seconds, and seconds per byte; absent where nothing had to be measured. */
  rates: z.optional(costModel),
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
      ranges: z.array(range).check(z.minLength(1)),
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
  const parsed = tuningFile.safeParse(value, { error: en().localeError });
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
