/** The examples of docs/bring-your-own.md: a task over a transport of one's own, and hooks for a framework of one's own. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));

async function run(args: readonly string[]): Promise<{ code: number | null; output: string }> {
  const child = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text: string) => (output += text));
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, output };
}

it('a kind of task over HTTP: the layer that is ready last and needed first overtakes, and sums are right', async () => {
  const { code, output } = await run(['--import', 'tsx', 'examples/bring-your-own/transport.ts']);
  expect(output).toContain('every weight is the sum');
  const [, parts] = /parts started: (.*)/.exec(output)!;
  expect(parts.split(' ').length).toBe(6 * 8);
  expect(code).toBe(0);
});

it('hooks for a loop over layers: ranks with points of their own end with the same weights', async () => {
  const { code, output } = await run(['dist/tools/cli/main.js', 'run', '-q', '-n', '2', 'examples/bring-your-own/framework.ts']);
  const weights = [...output.matchAll(/weights (\S+)/g)].map(([, each]) => each);
  expect([weights.length, new Set(weights).size]).toEqual([2, 1]);
  expect(code).toBe(0);
});

it('each is shorter than 120 lines', () => {
  for (const name of ['transport', 'framework'])
    expect(readFileSync(`${root}/examples/bring-your-own/${name}.ts`, 'utf8').split('\n').length, name).toBeLessThanOrEqual(121);
});
