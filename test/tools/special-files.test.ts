/** Pipes and devices in place of named files: every reader refuses them, where it would wait for ever or read without an end. */
import { execFile, execFileSync } from 'node:child_process';
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { repositoryRoot } from '../../scripts/repository.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';

const folder = temporaryFolder('special-files', afterAll);
const run = join(folder, 'run');
mkdirSync(run);
const pipe = join(folder, 'pipe');
for (const path of [pipe, join(run, 'trace-rank-0.json'), join(run, 'launcher.json')]) execFileSync('mkfifo', [path]);
for (const name of ['trace-rank-1.json', 'flight-rank-1.json', 'summary.json']) symlinkSync('/dev/zero', join(run, name));
const script = join(folder, 'script.mjs');
writeFileSync(script, '');
const models = ['pipe', 'endless'].map((weights) => {
  const path = join(folder, `${weights}.json`);
  writeFileSync(path, JSON.stringify({ modelTopology: { node: [] }, weightsManifest: [{ paths: [weights], weights: [] }] }));
  return path;
});
symlinkSync('/dev/zero', join(folder, 'endless'));
const importing = (path: string): string[] => [
  '--input-type=module',
  '--eval',
  `import { importModelJson } from 'shoal/graph'; await importModelJson(${JSON.stringify(path)});`,
];
const cli = 'dist/tools/cli/main.js';

/** The output of a program until it ends; one that does not end is killed. */
function outputOf(args: readonly string[], env: NodeJS.ProcessEnv): Promise<string> {
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      args,
      { cwd: repositoryRoot, env: { ...process.env, ...env }, timeout: 60_000, killSignal: 'SIGKILL', maxBuffer: 1 << 20 },
      (error, stdout, stderr) => resolve(`${error?.killed === true ? 'it did not end\n' : ''}${stdout}${stderr}`),
    );
  });
}

it.each<[string, readonly string[], RegExp[], NodeJS.ProcessEnv?]>([
  [
    'shoal report',
    [cli, 'report', run],
    [
      /trace-rank-0\.json is a pipe; only regular files are read/,
      /trace-rank-1\.json is a device/,
      /flight-rank-1\.json is a device/,
      /summary\.json is a device/,
      /launcher\.json is a pipe/,
    ],
  ],
  ['shoal trace merge', [cli, 'trace', 'merge', run], [/trace-rank-0\.json is a pipe/]],
  ['shoal graph', [cli, 'graph', pipe], [/pipe is a pipe/]],
  ['shoal run --secret-file', [cli, 'run', '--secret-file', pipe, script], [/--secret-file .* is a pipe/]],
  [
    'a tuning file',
    [cli, 'plan', 'all-reduce', '--table'],
    [/SHOAL_TUNING_FILE .*endless cannot be read: .* is a device/],
    { SHOAL_TUNING_FILE: join(folder, 'endless') },
  ],
  ...models.map(
    (path, k) =>
      [`weights of a model that are ${['a pipe', 'a device'][k]}`, importing(path), [/only regular files are read/]] as [
        string,
        string[],
        RegExp[],
      ],
  ),
])('%s refuses what is not a regular file', async (_, args, messages, env = {}) => {
  const output = await outputOf(args, env);
  expect(output).not.toContain('it did not end');
  for (const message of messages) expect(output).toMatch(message);
});
