/** Ranks started by Open MPI's own launcher find each other without any configuration. */
import { spawnSync } from 'node:child_process';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it, type TestContext } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { start, type Running } from '../fixtures/launch-harness.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { mpirunFolder } from '../support/mpirun-folder.ts';

const mpirun = spawnSync('mpirun', ['--version'], { encoding: 'utf8' });
const missing = mpirun.status === 0 && mpirun.stdout.includes('Open MPI') ? undefined : "Open MPI's mpirun is not on PATH";

function needsOpenMpi(context: TestContext): void {
  if (missing !== undefined) context.skip(missing);
}

function underMpirun(ranks: number, env: Record<string, string>, command: readonly string[] = fixtureCommand('launch-store')): Running {
  const flags = ['--allow-run-as-root', '--oversubscribe', '-n', String(ranks)];
  return start(['mpirun', ...flags, ...command], { env: { ...mpirunFolder(), ...env } });
}

describe('mpirun', () => {
  it('ranks of one host meet through the private directory and leave nothing in it', async (context) => {
    needsOpenMpi(context);
    const runtime = temporaryFolder('mpirun');
    await using job = underMpirun(3, { XDG_RUNTIME_DIR: runtime });
    const { code, stdout, stderr } = await job.ended;
    expect(stderr).not.toContain('ShoalError');
    expect(code).toBe(0);
    expect(stdout.match(/met \d of 3 by open-mpi/g)?.sort()).toEqual([0, 1, 2].map((rank) => `met ${rank} of 3 by open-mpi`));
    expect(stdout.match(/first true/g)).toHaveLength(1);
    expect(await readdir(join(runtime, `shoal-${process.getuid!()}`))).toEqual([]);
  });

  it('two jobs at once do not meet', async (context) => {
    needsOpenMpi(context);
    const runtime = temporaryFolder('mpirun');
    await using first = underMpirun(2, { XDG_RUNTIME_DIR: runtime });
    await using second = underMpirun(2, { XDG_RUNTIME_DIR: runtime });
    for (const { code, stdout } of await Promise.all([first.ended, second.ended])) {
      expect(code).toBe(0);
      expect(stdout.match(/first true/g)).toHaveLength(1);
    }
  });

  it('a process group forms and sums, without a setting', async (context) => {
    needsOpenMpi(context);
    const runtime = temporaryFolder('mpirun');
    const example = fileURLToPath(new URL('../../examples/ten-lines.ts', import.meta.url));
    const command = [process.execPath, '--import', import.meta.resolve('tsx'), example];
    await using job = underMpirun(3, { XDG_RUNTIME_DIR: runtime }, command);
    const { code, stdout, stderr } = await job.ended;
    expect(stderr).not.toContain('ShoalError');
    expect(code).toBe(0);
    expect(stdout.trim().split('\n').toSorted()).toEqual([0, 1, 2].map((rank) => `rank ${rank} of 3: 6`));
    expect(await readdir(join(runtime, `shoal-${process.getuid!()}`))).toEqual([]);
  });
});
