/** The scripts that are written for each shell; test/tools/shell-completion.test.ts shows that shells load and use them. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { commands } from '../commands.ts';
import { completed } from './completed-command.ts';
import { completionScript, shells } from './shell-completion.ts';

const known = commands.map((add) => add(() => undefined));

it.for(shells)('the script for %s has every command and its options, in its own syntax', (shell, context) => {
  const script = completionScript(shell, known);
  for (const command of known) {
    expect(script).toContain(command.name());
    for (const { long = '' } of command.options) expect(script).toContain(shell === 'fish' ? `-l ${long.slice(2)}` : long);
  }
  const folder = mkdtempSync(join(tmpdir(), 'shoal-completion-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  // fish reads no script from the sockets that Node.js makes.
  writeFileSync(join(folder, 'script'), script);
  const { status, stderr, error } = spawnSync(shell, ['-n', join(folder, 'script')], { encoding: 'utf8' });
  if (error) context.skip(`${shell} is not installed: its syntax was not checked`);
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
});

it('words go where a declaration or the list of known words has them', () => {
  const of = (name: string): ReturnType<typeof completed> => completed(known.find((each) => each.name() === name)!);
  const value = (name: string, flag: string): unknown => {
    const { takes, value } = of(name).options.find(({ flags }) => flags.includes(flag))!;
    return { takes, value };
  };
  expect(of('run')).toMatchObject({ first: 'path', rest: 'path', passesOn: true });
  expect(of('trace')).toMatchObject({ first: ['merge'], rest: 'path' });
  expect(of('plan').first).toContain('reduce');
  expect(of('bench').first).toContain('send-recv');
  expect(of('info')).toMatchObject({ first: undefined, rest: undefined });
  expect(value('bench', '--touch')).toEqual({ takes: 'value', value: ['each', 'once'] });
  expect(value('bench', '-o')).toMatchObject({ value: expect.arrayContaining(['sum', 'bxor']) });
  expect(value('bench', '--iters')).toEqual({ takes: 'value', value: undefined });
  expect(value('bench', '--raw')).toEqual({ takes: 'nothing', value: undefined });
  expect(value('report', '--output')).toEqual({ takes: 'value', value: 'path' });
  expect(value('tune', '--predict')).toEqual({ takes: 'optional value', value: 'path' });
});
