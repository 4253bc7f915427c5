/** Graphs that compute on WebGPU devices, started by `shoal run`: in a loop, with nothing to do, with options that there are not, and with
 *  a task that is killed. SwiftShader computes, where chromium has brought it. */
import { describe, expect, it } from 'vitest';
import { softwareDriver } from '../../src/memory/device/software-driver.ts';
import { allGone, pidsOf, shoal, type Running } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const driver = softwareDriver();
const why = driver === undefined ? " (skipped: SwiftShader's driver is not installed: apt-get install chromium)" : '';

function run(flags: readonly string[], ...args: readonly string[]): Running {
  return shoal(['run', ...flags, fixtureScript('graph-device'), ...args], { env: { ...driver } });
}

describe.skipIf(driver === undefined)(`a graph on devices, started by the launcher${why}`, () => {
  it.each([
    ['a step after the other', ['--counts', '1000,1,1000,0,3000'], [1000, 1, 1000, 0, 3000]],
    ['a loop over two devices', ['--loops', '40', '--counts', '0,1,1000'], [0, 1, 1000]],
    ['nothing', ['--counts', ''], []],
  ])('runs %s', async (_, args, counts) => {
    const { code, stdout, stderr } = await run(['-q', '-n', '2'], ...args).ended;
    expect(code, stderr).toBe(0);
    expect(stderr).toBe('');
    const said = stdout.split('\n').filter((line) => line.startsWith('[rank 0]') && line.includes('count'));
    expect(said).toEqual(counts.map((count) => `[rank 0] {"count":${count},"same":true}`));
    expect(stdout.match(/"ended":true/g)).toHaveLength(2);
  });

  it('names an option that its script has not, and a device that is not there', async () => {
    const unknown = await run(['-n', '2'], '--frobnicate').ended;
    expect(unknown.code).toBe(1);
    expect(unknown.stderr).toContain("Unknown option '--frobnicate'");
    const alone = await run(['-n', '1']).ended;
    expect(alone.code).toBe(1);
    expect(alone.stderr).toMatch(/ShoalError: Call '.*': device \/job:worker\/task:1 does not exist; devices: \/job:worker\/task:0/);
  });

  it.each([0, 1])('ends on all ranks when rank %i is killed in a step, and names it', async (victim) => {
    await using job = run(['-n', '2', '--grace', '60s'], '--loops', '1e9', '--counts', '1000');
    const pids = pidsOf(await job.output(/rank 0 started \(pid (\d+)\), rank 1 started \(pid (\d+)\)/, 1));
    await job.output(/"calls":20/, 2);
    process.kill(pids[victim], 'SIGKILL');
    const { code, stderr } = await job.ended;
    expect(code).toBe(137);
    expect(stderr).toMatch(
      new RegExp(`rank ${1 - victim} exited with code 1: ShoalError: .*(task:${victim} is lost|rank ${victim} was killed)`),
    );
    expect(stderr).toContain(`rank ${victim} failed first: it was killed by SIGKILL`);
    expect(stderr).not.toContain('still running');
    await allGone(pids);
  });
});
