/** Checks that the worlds find defects that were mended once: each is put back in a copy of the sources, and worlds are run until
 *  one goes wrong. `--seeds 1000` at most of each, `--only 3`, `--result file.json`. */
import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ShoalError } from '../../src/base/errors.ts';
import { packageFile } from '../../src/base/packages/package-root.ts';
import { mendedDefects, type MendedDefect } from '../worlds/mended-defects.ts';

const text = { type: 'string' } as const;
const { values: given } = parseArgs({ options: { seeds: text, only: text, result: text } });

interface Found {
  readonly defect: string;
  readonly outcome: string;
  /** Seed of the first world that goes wrong; undefined: none does. */
  readonly seed: number | undefined;
  readonly problem: string | undefined;
}

const seeds = given.seeds ?? '1000';
const chosen = [...mendedDefects.entries()].filter(([index]) => given.only === undefined || Number(given.only) === index);
const found = chosen.map(([index, defect]) => {
  const result = find(defect, index);
  const { seed, problem } = result;
  console.log(
    `${index}: ${seed === undefined ? 'NOT FOUND' : `seed ${seed}`}: ${defect.name}${problem === undefined ? '' : `\n  ${problem}`}`,
  );
  return result;
});
if (given.result !== undefined) writeFileSync(given.result, `${JSON.stringify(found, null, 2)}\n`);
process.exitCode = found.every(({ seed }) => seed !== undefined) ? 0 : 1;

function find(defect: MendedDefect, index: number): Found {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-mutant-'));
  try {
    for (const name of ['src', 'test', 'package.json', 'tsconfig.json']) cpSync(packageFile(name), join(folder, name), { recursive: true });
    for (const name of ['node_modules', 'build', 'native']) symlinkSync(packageFile(name), join(folder, name));
    putBack(defect, join(folder, defect.file));
    const run = (...worlds: string[]): string => {
      const args = ['--import', 'tsx', 'test/soaks/worlds.ts', ...worlds, '--shaped', String(index), '--until-wrong'];
      return spawnSync(process.execPath, args, { cwd: folder, encoding: 'utf8' }).stdout;
    };
    const known = defect.seed === undefined ? '' : run('--from', String(defect.seed), '--seeds', '1');
    const said = known.startsWith('seed') ? known : run('--seeds', seeds);
    const [, seed, problem] = /^seed (\d+): (.*)$/m.exec(said) ?? [];
    const outcome = seed === undefined ? `not found in ${seeds} worlds` : 'found';
    return { defect: defect.name, outcome, seed: seed === undefined ? undefined : Number(seed), problem: problem?.slice(0, 300) };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function putBack({ name, mended, broken }: MendedDefect, path: string): void {
  const source = readFileSync(path, 'utf8');
  if (source.split(mended).length !== 2) throw new ShoalError('usage', `'${name}': ${path} does not have its text exactly once`);
  writeFileSync(path, source.replace(mended, broken));
}
