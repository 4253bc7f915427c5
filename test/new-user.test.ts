/** The package as it is packed, in the hands of someone new; `npm run test:new-user` does the whole of it. */
import { expect, it } from 'vitest';
import { readText } from '../scripts/repository.ts';
import { managers } from './new-user/managers.ts';
import { newUser, packPackage, TemporaryFolder } from './new-user/new-user.ts';
import { tutorialSteps } from './new-user/tutorial.ts';

it('it installs without a compiler and without scripts, works in TypeScript, ES modules and CommonJS, and names what broke', async (context) => {
  using folder = new TemporaryFolder();
  const tarball = packPackage(folder.path, process.arch);
  if (tarball === undefined) return context.skip('there is no addon to pack: a compiler is missing');
  const [manager] = managers;
  const { causes, packages } = await newUser({
    tarball,
    manager,
    tutorial: () => false,
    breaks: (name) => name === 'a rank throws',
    log: () => undefined,
  });
  expect(causes).toEqual({ 'a rank throws': expect.stringContaining('data.csv has no column "price"') as string });
  // What it brings along is small: itself, its two dependencies, and theirs.
  expect(packages).toBeLessThan(12);
});

it('the tutorial has nothing but programs, commands and what they print, and runs every program', () => {
  const steps = tutorialSteps(readText('docs/tutorial.md'));
  expect([...new Set(steps.map(({ section }) => section))]).toEqual([
    'One process',
    'Two processes',
    'Two machines',
    'jax-js',
    'TensorFlow.js',
  ]);
  const programs = steps.flatMap(({ files }) => files.map(({ name }) => name));
  const commands = steps.flatMap(({ commands: lines }) => lines.map(({ line }) => line)).join('\n');
  expect(programs.filter((name) => !commands.includes(name))).toEqual([]);
  expect(() => tutorialSteps('```ts\nlet x = 1;\n```\n')).toThrow('does not begin with its name');
  expect(() => tutorialSteps('```ts\n// a.ts\n```\n')).toThrow('does not run a.ts');
});
