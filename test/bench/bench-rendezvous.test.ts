/** The benchmarks of rendezvous in their smallest form, on this host: every contestant takes all its steps, between all processes. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, it } from 'vitest';
import { nativeUnavailableReason } from '../../src/memory/native.ts';

const run = async (name: string, ...args: string[]): Promise<string> => {
  const program = fileURLToPath(new URL(`../../bench/rendezvous/${name}`, import.meta.url));
  return (await promisify(execFile)(process.execPath, ['--import', 'tsx', program, ...args])).stdout;
};

it('asks for tensors of several cases over one connection per contestant', { timeout: 240_000 }, async (context) => {
  const missing = nativeUnavailableReason();
  if (missing !== undefined) context.skip(`shm: ${missing}`);
  const stdout = await run('run.ts', '--cases', '64 KiB,1 KiB beside a socket', '--scale', '0.02');
  const { results } = JSON.parse(stdout) as { results: { case: string; contestant: string; stepMs: { median: number } }[] };
  expect(results.map((row) => [row.case, row.contestant])).toEqual([
    ['64 KiB', 'tcp, requests'],
    ['64 KiB', 'tcp, standing requests'],
    ['1 KiB beside a socket', 'shm'],
    ['1 KiB beside a socket', 'tcp'],
    ['1 KiB beside a socket', 'a plain socket'],
  ]);
  for (const { stepMs } of results) expect(stepMs.median).toBeGreaterThan(0);
});

it('replays training steps of a server and two workers', { timeout: 240_000 }, async () => {
  const stdout = await run('replay.ts', '--here', '--workers', '2', '--bytes-scale', '0.0005', '--rounds', '2', '--steps', '1');
  const { model, results } = JSON.parse(stdout) as { model: { bytes: number; computeMs: number }; results: Record<string, unknown>[] };
  expect(model).toMatchObject({ bytes: 4 * 138_357_544, computeMs: 139 });
  expect(results.map(({ contestant }) => contestant)).toEqual(['0 copies', 'with copies', 'gRPC']);
  for (const row of results) expect(row).toMatchObject({ workers: 2, samples: 2, ofComputing: expect.any(Number) as number });
});
