/** Starts a small job and reports what its ranks reached each other over. */
import { Writable } from 'node:stream';
import { systemClock } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { builtEntry } from '../../../base/packages/package-root.ts';
import { systemRandom } from '../../../base/random.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import { launch } from '../../../launch/launch.ts';
import { scriptCommand } from '../../../launch/script-command.ts';

export interface Links {
  /** Ranks by machine. */
  readonly hosts: readonly (readonly number[])[];
  /** fabrics[a][b]: what rank a reaches rank b over. */
  readonly fabrics: readonly (readonly string[])[];
}

/** @throws ShoalError `system` when the ranks do not come up; their own messages went to stderr. */
export async function measureLinks(ranks: number, environment: Environment): Promise<Links> {
  const pieces: Buffer[] = [];
  const stdout = new Writable({
    write(chunk: Buffer, _, done) {
      pieces.push(chunk);
      done();
    },
  });
  const directory = process.cwd();
  const job = launch({
    clock: systemClock,
    random: systemRandom,
    command: scriptCommand({ script: builtEntry('tools/cli/info/probe-links.js'), args: [], directory }),
    directory,
    environment,
    localSize: ranks,
    stdout,
    stderr: process.stderr,
    events: 'failures',
  });
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, () => job.signal(name));
  const { exitCode } = await job.result;
  const line = Buffer.concat(pieces).toString();
  if (exitCode !== 0) throw new ShoalError('system', `${ranks} ranks could not connect on this machine (exit code ${exitCode})`);
  return JSON.parse(line.slice(line.indexOf('{'))) as Links;
}
