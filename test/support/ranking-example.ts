/** Runs an example that trains a ranking model, by the command that users run, and reads its report. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { shoal } from '../fixtures/launch-harness.ts';

export interface RankingResult {
  readonly auc: number;
  readonly bestAuc: number;
  readonly loss: number;
  readonly rpcsPerStep: number;
  readonly receivesPerStep: number;
  readonly bytesPerStep: number;
  readonly examplesPerSecond: number;
  /** Largest difference from logits computed another way. */
  readonly otherwise?: number;
}

/** Trains with 2 workers. @param folder for the result. */
export async function trainExample(
  script: string,
  folder: string,
  servers: number,
  flags: readonly string[],
  env: Readonly<Record<string, string>> = {},
): Promise<RankingResult> {
  const out = join(folder, 'result.json');
  const command = [script, '--out', out, '--evaluation', '2000', ...flags];
  const { code, stderr } = await shoal(['run', '--ps', String(servers), '--workers', '2', ...command], { env }).ended;
  expect(code, stderr).toBe(0);
  return JSON.parse(readFileSync(out, 'utf8')) as RankingResult;
}
