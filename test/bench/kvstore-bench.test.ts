/** The comparison program runs, on little data: the values of its figures mean nothing here, only their presence and the checks. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { nativeUnavailableReason } from '../../src/memory/native.ts';

const program = fileURLToPath(new URL('../../bench/kvstore/run.ts', import.meta.url));
const little = ['--rounds', '1', '--iterations', '1', '--mib', '2', '--key-mib', '0.5', '--keys', '60', '--key-bytes', '64'];
const unavailable = nativeUnavailableReason();

it.skipIf(unavailable !== undefined)(
  `all contestants finish with right results${unavailable === undefined ? '' : ` (skipped: ${unavailable})`}`,
  async () => {
    const { stdout } = await promisify(execFile)(process.execPath, ['--import', 'tsx', program, ...little]);
    const { results } = JSON.parse(stdout) as { results: { row: string; contestants: { name: string; milliseconds: number }[] }[] };
    expect(results.map(({ row }) => row)).toEqual(['large', 'small']);
    for (const { contestants } of results) {
      expect(contestants.map(({ name }) => name)).toEqual(['copy-bound', 'dist_sync', 'collective', 'grpc']);
      for (const { milliseconds } of contestants) expect(milliseconds).toBeGreaterThan(0);
    }
  },
);
