/** Schemas of the files that a demo run leaves: `rank-<n>.json` of each process, `summary.json` of the whole. The fields are
 *  | explained in docs/summary-schema.md; a change of meaning raises the version. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';

const model = z.object({
  vocabulary: z.int().positive(),
  context: z.int().positive(),
  width: z.int().positive(),
  layers: z.int().positive(),
  heads: z.int().positive(),
});
const training = z.object({
  steps: z.int().positive(),
  batch: z.int().positive(),
  rate: z.number().positive(),
  seed: z.int().nonnegative(),
});
const text = z.object({ files: z.array(z.string()).min(1), characters: z.int().positive(), unigramLoss: z.number().positive() });
const checksum = z.string().regex(/^[0-9a-f]{16}$/);
const losses = z.array(z.tuple([z.int().positive(), z.number()])).min(1);

const measured = {
  seconds: z.number().nonnegative(),
  tokensPerSecond: z.number().nonnegative(),
  communicating: z.number().min(0).max(1),
  losses,
  heldOutLoss: z.number(),
  before: z.string(),
  after: z.string(),
};

export const rankResultSchema = z.object({
  rank: z.int().nonnegative(),
  size: z.int().positive(),
  text,
  model,
  training,
  checksum,
  ...measured,
});
export type RankResult = z.infer<typeof rankResultSchema>;

const runSchema = z.object({
  processes: z.int().positive(),
  ...measured,
  checksums: z.array(checksum).min(1),
  logs: z.array(z.string()),
});

export const summarySchema = z.object({
  version: z.literal(1),
  kind: z.literal('char-lm'),
  startedAt: z.iso.datetime(),
  seconds: z.number().nonnegative(),
  host: z.object({
    cpus: z.int().positive(),
    cpuModel: z.string(),
    node: z.string(),
    platform: z.string(),
    arch: z.string(),
    loadAverage: z.number().nonnegative(),
  }),
  text,
  model,
  training,
  runs: z.array(runSchema).min(1),
  elastic: runSchema
    .extend({
      killed: z.object({ rank: z.int().positive(), pid: z.int().positive(), step: z.int().positive() }),
      changes: z.array(z.string()),
    })
    .optional(),
  scaling: z.number().nonnegative(),
});
export type Summary = z.infer<typeof summarySchema>;
export type RunSummary = Summary['runs'][number];

/** Leaves a process's result in the folder, as `rank-<n>.json`. */
export function writeResult(folder: string, result: RankResult): void {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `rank-${result.rank}.json`), JSON.stringify(result));
}
