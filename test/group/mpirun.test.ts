/** Open MPI under the messages and under the collectives of real processes, and the errors where it cannot be used. */
import { execFileSync, spawnSync } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, type TestContext } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { groupChecks, plannedChecks } from '../../src/group/conformance.ts';
import { nativeUnavailableReason } from '../../src/memory/native.ts';
import { mpiUnavailable } from '../../src/mpi/mpi-endpoint.ts';
import { start, type Running } from '../fixtures/launch-harness.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { mpirunFolder } from '../support/mpirun-folder.ts';

const tsx = import.meta.resolve('tsx');
const mpirun = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
const missing = mpiUnavailable() ?? (mpirun.status === 0 && mpirun.stdout.includes('Open MPI') ? undefined : 'mpirun is not on PATH');

function needsMpi(context: TestContext): void {
  if (missing !== undefined) context.skip(missing);
}

function underMpirun(ranks: number, script: string, args: readonly string[] = [], env: Record<string, string> = {}): Running {
  const flags = ['--allow-run-as-root', '--oversubscribe', '-n', String(ranks)];
  return start(['mpirun', ...flags, ...fixtureCommand(script), ...args], { env: { ...mpirunFolder(), ...env } });
}

function linesOf(stdout: string): Record<string, unknown>[] {
  return stdout
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);
}

describe('messages over mpi://', () => {
  it('go between four processes, in order, small and large, both ways', async (context) => {
    needsMpi(context);
    await using job = underMpirun(4, 'mpi-messaging');
    const { code, stdout, stderr } = await job.ended;
    expect([code, stderr]).toEqual([0, '']);
    const reports = linesOf(stdout).toSorted((a, b) => Number(a.rank) - Number(b.rank));
    expect(reports.map(({ rank, sources, messages }) => [rank, sources, messages])).toEqual([0, 1, 2, 3].map((rank) => [rank, 6, 2400]));
    expect(new Set(reports.map(({ bytes }) => bytes)).size).toBe(1);
  });

  it('end with the job when a process is killed: mpirun ends the others', async (context) => {
    needsMpi(context);
    await using job = underMpirun(3, 'mpi-messaging', ['die']);
    const { code, stdout, stderr } = await job.ended;
    expect(code).toBe(128 + 9);
    expect(linesOf(stdout)).toEqual([]);
    expect(stderr).toMatch(/rank 1 .*exited on signal 9/);
  });
});

describe("process groups with backend 'mpi'", () => {
  const run = async (ranks: number, part: string): Promise<Record<string, unknown>[]> => {
    await using job = underMpirun(ranks, 'mpi-group', [part]);
    const { code, stdout, stderr } = await job.ended;
    expect([code, stderr]).toEqual([0, '']);
    return linesOf(stdout);
  };

  it.for([
    { ranks: 1, part: 'checks', checks: groupChecks },
    { ranks: 2, part: 'planned checks', checks: plannedChecks },
    { ranks: 4, part: 'checks', checks: groupChecks },
  ])('$ranks ranks pass all $part of process groups', async ({ ranks, part, checks }, context) => {
    needsMpi(context);
    expect((await run(ranks, part)).map(({ passed }) => passed)).toEqual(checks.map(({ name }) => name));
  });

  it('give the values that Shoal promises where MPI promises none, beside groups of other backends', async (context) => {
    needsMpi(context);
    const lines = await run(4, 'values');
    expect(lines).toHaveLength(4);
    for (const { rank, ...rest } of lines) {
      const values = { x: ['NaN', '0'], zero: true, y: ['NaN', '0'], z: 1.5, flags: [1, 1], changed: 'unsupported' };
      expect(rest).toEqual({ ...values, w: Number(rank) < 2 ? 3 : Number(rank) + 1 });
    }
  });

  it('tell every rank of a mismatch, with every call and its place, before MPI hears of it', async (context) => {
    needsMpi(context);
    const lines = await run(3, 'mismatch');
    expect(lines.map(({ code }) => code)).toEqual(['mismatch', 'mismatch', 'mismatch']);
    for (const { message } of lines) expect(message).toMatch(/rank 2: all-reduce #0 float32\[5\] sum at mpi-group\.mjs:\d+/);
  });

  it('name the rank that is late', async (context) => {
    needsMpi(context);
    const lines = await run(3, 'late');
    expect(lines.map(({ code }) => code)).toEqual(['timeout', 'timeout', 'timeout']);
    for (const { message } of lines) expect(message).toMatch(/waiting for rank 1/);
  });

  it('refuse ranks that MPI numbers otherwise', async (context) => {
    needsMpi(context);
    const folder = temporaryFolder('mpi');
    await using job = underMpirun(2, 'mpi-group', ['permuted', join(folder, 'store')]);
    const lines = linesOf((await job.ended).stdout);
    expect(lines.map(({ code }) => code)).toContain('config');
    expect(String(lines.find(({ code }) => code === 'config')?.message)).toMatch(/rank \d of 2, and rank \d of 2 for MPI/);
  });
});

describe('a machine', () => {
  const names = ['libmpi.so.40', 'libmpi.so.20', 'libmpi.so.12', 'libmpich.so.12', 'libmpi.so'];
  const program = `
    const { mpiUnavailable } = await import('./src/mpi/mpi-endpoint.ts');
    const { MessagingContext, Router } = await import('./src/messaging/index.ts');
    const context = new MessagingContext({ world: 'w', secret: Buffer.from('s') });
    const refusal = await new Router(context).bind('mpi://*').catch((error) => error);
    console.log(JSON.stringify({ why: mpiUnavailable(), code: refusal.code, message: refusal.message }));`;
  const reportWith = (libraries: string): Record<string, unknown> => {
    const args = ['--import', tsx, '--input-type=module', '--eval', program];
    const env = { ...process.env, LD_LIBRARY_PATH: libraries, FORCE_COLOR: undefined };
    const cwd = fileURLToPath(new URL('../..', import.meta.url));
    return linesOf(execFileSync(process.execPath, args, { encoding: 'utf8', env, cwd }))[0];
  };

  function needsAddon(context: TestContext): void {
    const enabled = process.env.SHOAL_NATIVE !== '0';
    if (!enabled) context.skip('the addon is switched off');
    const reason = nativeUnavailableReason();
    if (reason !== undefined) context.skip(reason);
  }

  it('without Open MPI is told so, with the next step', async (context) => {
    needsAddon(context);
    const folder = temporaryFolder('no-mpi');
    // These files are found first, and are not libraries: so there is none.
    for (const name of names) await writeFile(join(folder, name), 'not a library');
    const { why, code, message } = reportWith(folder);
    expect(why).toMatch(/libmpi\.so\.40 cannot be loaded .*install Open MPI/);
    expect([code, message]).toEqual(['unsupported', `mpi:// cannot be used: ${String(why)}`]);
  });

  it('with MPICH is told that only Open MPI will do', async (context) => {
    needsAddon(context);
    if (spawnSync('g++', ['--version']).status !== 0) context.skip('there is no compiler');
    const folder = temporaryFolder('mpich');
    const source = String.raw`extern "C" int MPI_Get_library_version(char *v, int *n) {
      const char *text = "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 2022";
      for (*n = 0; (v[*n] = text[*n]) != 0; ++*n) {}
      return 0;
    }`;
    const options = ['-shared', '-fPIC', '-x', 'c++', '-', '-o', join(folder, names[0])];
    execFileSync('g++', options, { input: source });
    const { why, code } = reportWith(folder);
    expect(why).toMatch(/the MPI library is MPICH Version:\s4\.0\.2, and only Open MPI's binary interface is known/);
    expect(code).toBe('unsupported');
  });
});
