/** `npm run check`: every static check, all of them even after one has failed, and one line per check at the end. */
import { spawnSync } from 'node:child_process';
import { repositoryRoot } from './repository.ts';

const checks: readonly { readonly name: string; readonly command: readonly string[] }[] = [
  { name: 'types', command: ['tsc', '-p', 'tsconfig.json'] },
  { name: 'lint', command: ['oxlint', '--type-aware', '--deny-warnings'] },
  { name: 'format', command: ['oxfmt', '--check'] },
  { name: 'house rules', command: ['tsx', 'scripts/check-house-rules.ts'] },
  { name: 'generated pages', command: ['tsx', 'scripts/generate-docs.ts', '--check'] },
  { name: 'dead code', command: ['knip'] },
  { name: 'package', command: ['publint', '--strict'] },
];

const results = checks.map(({ name, command: [program, ...args] }) => {
  console.log(`\n── ${name}: ${[program, ...args].join(' ')}`);
  // npm puts node_modules/.bin first in the path of its scripts.
  const { status, error } = spawnSync(program, args, { cwd: repositoryRoot, stdio: 'inherit' });
  if (error !== undefined) console.error(`${program} does not start: ${error.message}`);
  return { name, passed: status === 0 };
});

console.log('');
for (const { name, passed } of results) console.log(`${passed ? 'ok    ' : 'FAILED'} ${name}`);
process.exitCode = results.every(({ passed }) => passed) ? 0 : 1;
