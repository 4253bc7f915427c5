/** The replay of training steps in its smallest form, on this host: every contestant takes all its steps, between all processes. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';

it('replays training steps of a server and two workers', { timeout: 240_000 }, async () => {
  const program = fileURLToPath(new URL('../../bench/rendezvous/replay.ts', import.meta.url));
  const args = ['--here', '--workers', '2', '--bytes-scale', '0.0005', '--rounds', '2', '--steps', '1'];
  const { stdout } = await promisify(execFile)(process.execPath, ['--import', 'tsx', program, ...args]);
  const { model, results } = JSON.parse(stdout) as { model: { bytes: number; computeMs: number }; results: Record<string, unknown>[] };
  expect(model).toMatchObject({ bytes: 4 * 138_357_544, computeMs: 139 });
  expect(results.map(({ contestant }) => contestant)).toEqual(['0 copies', 'with copies', 'gRPC']);
  for (const row of results) expect(row).toMatchObject({ workers: 2, samples: 2, ofComputing: expect.any(Number) as number });
});
