/** Makes results that the documentation quotes again, one after the other, on a machine that does nothing else.
 *
 *    npx tsx bench/measure.ts                                   all of them; most of an hour
 *    npx tsx bench/measure.ts peers-4x2-1gbit kvstore           these
 *    npx tsx bench/measure.ts --list                            their names and commands
 *    npx tsx bench/measure.ts --out /tmp/results                elsewhere than bench/results
 *
 *  Beside the results it writes `measured.json`: the commit of each, when it was made, and the load of the machine before.
 *
 *  Hosts are made of network namespaces, which needs root. Build first. `npm run docs` then writes docs/performance.md. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { loadavg } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { programArguments } from './arguments.ts';
import { measurements, type Measurement } from './measurements.ts';

const repository = dirname(dirname(fileURLToPath(import.meta.url)));
const { values, positionals } = programArguments(import.meta.url, {
  allowPositionals: true,
  options: { out: { type: 'string', default: join(repository, 'bench/results') }, list: { type: 'boolean', default: false } },
});

const unknown = positionals.filter((name) => !measurements.some((each) => each.name === name));
if (unknown.length > 0) {
  console.error(`no measurement is called ${unknown.join(', ')}; there are ${measurements.map(({ name }) => name).join(', ')}`);
  process.exit(2);
}
const wanted = measurements.filter(({ name }) => positionals.length === 0 || positionals.includes(name));
const variablesOf = ({ environment = {} }: Measurement): string[] => Object.entries(environment).map(([name, value]) => `${name}=${value}`);
if (values.list) for (const each of wanted) console.log(`${each.name}\n    ${[...variablesOf(each), 'node', ...each.command].join(' ')}`);
else process.exitCode = measureAll(wanted, values.out);

/** @returns 1 when one of them failed. */
function measureAll(all: readonly Measurement[], out: string): number {
  mkdirSync(out, { recursive: true });
  const failed = all.filter(({ name, command, environment }) => {
    console.error(`── ${name}`);
    const args = command.map((each) => each.replace('{out}', out));
    const made = { commit: commit(), startedAt: new Date().toISOString(), loadBefore: loadavg()[0] };
    const env = { ...process.env, ...environment };
    if (spawnSync(process.execPath, args, { cwd: repository, stdio: 'inherit', env }).status !== 0) return true;
    const path = join(out, 'measured.json');
    const others = existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as object) : {};
    writeFileSync(path, `${JSON.stringify({ ...others, [name]: made }, null, 1)}\n`);
    return false;
  });
  for (const { name } of failed) console.error(`${name} failed`);
  return failed.length > 0 ? 1 : 0;
}

function commit(): string {
  return spawnSync('git', ['describe', '--always', '--dirty'], { cwd: repository, encoding: 'utf8' }).stdout.trim();
}
