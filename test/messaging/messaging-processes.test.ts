/** The checks of messaging whose parts are processes, by real processes, over everything that joins processes. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { mpiUnavailable } from '../../src/mpi/mpi-endpoint.ts';
import { checkParts, messagingChecks } from '../../src/messaging/testing/role-checks.ts';
import { fixtureCommand } from '../support/fixtures.ts';
import { mpirunFolder } from '../support/mpirun-folder.ts';

const mpirun = ['mpirun', '--allow-run-as-root', '--oversubscribe', '-n', String(checkParts.length)];

function mpiMissing(): string | undefined {
  return mpiUnavailable() ?? (spawnSync('mpirun', ['--version']).status === 0 ? undefined : 'mpirun is not on PATH');
}

/** @param signal fires when a part has failed, as the others would wait for it. */
async function output([program, ...args]: readonly string[], env: Record<string, string>, signal: AbortSignal): Promise<string> {
  const child = spawn(program, args, { env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
  signal.addEventListener('abort', () => child.kill('SIGKILL'));
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (part: string) => (text += part));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`a part ended with ${code}\n${text}`);
  return text;
}

it.for([
  { backend: 'tcp', missing: undefined },
  { backend: 'tcp without encryption', missing: undefined },
  { backend: 'ipc', missing: undefined },
  { backend: 'ipc without encryption', missing: undefined },
  { backend: 'fabric/tcp', missing: undefined },
  { backend: 'fabric/shm', missing: shmUnavailable() },
  { backend: 'mpi', missing: mpiMissing() },
])('a process for each part, over $backend', async ({ backend, missing }, context) => {
  if (missing !== undefined) context.skip(missing);
  const folder = temporaryFolder('checks');
  const failed = new AbortController();
  try {
    const env = { BACKEND: backend, FOLDER: folder };
    const command = fixtureCommand('messaging-checks');
    const outputs =
      backend === 'mpi'
        ? [await output([...mpirun, ...command], { ...env, ...mpirunFolder() }, failed.signal)]
        : await Promise.all(checkParts.map((_, part) => output(command, { ...env, PART: String(part) }, failed.signal)));
    const lines = outputs.flatMap((text) => text.trim().split('\n')).toSorted();
    const expected = checkParts.flatMap((part) => messagingChecks.map(({ name }) => JSON.stringify({ part, passed: name })));
    expect(lines).toEqual(expected.toSorted());
  } finally {
    failed.abort();
  }
});
