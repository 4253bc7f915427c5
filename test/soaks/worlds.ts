/** Worlds by their seeds: `--seeds 100000`, from `--from 1`, at most `--minutes 60`, in `--jobs 2` processes, counted in
 *  `--result file.json`. `--shaped 9`: worlds in which mended defect 9 may well show. A single world, with its output: `--seed
 *  17`, or `--world '{…}'` as a failure prints it. `--until-wrong`: ends after one that goes wrong, which it does not shrink. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { systemClock } from '../../src/base/clock.ts';
import { describeWrong } from '../worlds/check-world.ts';
import { mendedDefects } from '../worlds/mended-defects.ts';
import { runWorld } from '../worlds/world.ts';
import { worldOf, type WorldPlan } from '../worlds/world-plan.ts';

/** Worlds per process: a killed role holds on to its world, so each process runs this many, and ends. */
const worldsPerProcess = 500;

const text = { type: 'string' } as const;
const { values: given } = parseArgs({
  options: {
    seed: text,
    world: text,
    seeds: text,
    from: text,
    minutes: text,
    jobs: text,
    result: text,
    shaped: text,
    'until-wrong': { type: 'boolean', default: false },
  },
});

if (given.seed !== undefined || given.world !== undefined) {
  const plan = given.world === undefined ? worldOf(Number(given.seed)) : (JSON.parse(given.world) as WorldPlan);
  console.log(JSON.stringify(plan));
  const { problems, trace, events, generations } = await runWorld(plan, process.stderr);
  console.log(trace);
  console.log(`${events} events, ${generations} generations of ranks; ${problems.length === 0 ? 'all is well' : problems.join('\n')}`);
  process.exitCode = problems.length === 0 ? 0 : 1;
} else if (given['until-wrong'] || given.jobs === '0') await runHere();
else await runInProcesses();

type Total = Record<'worlds' | 'withFaults' | 'faults' | 'failedJobs' | 'generations' | 'events' | 'wrong', number>;

function nothing(): Total {
  return { worlds: 0, withFaults: 0, faults: 0, failedJobs: 0, generations: 0, events: 0, wrong: 0 };
}

async function runHere(): Promise<void> {
  const from = Number(given.from ?? 1);
  const count = Number(given.seeds ?? 1000);
  const { shaped } = mendedDefects[Number(given.shaped ?? NaN)] ?? {};
  const total = nothing();
  for (let seed = from; total.worlds < count; seed++) {
    const plan = shaped ? shaped(worldOf(seed)) : worldOf(seed);
    const { problems, hits, failed, generations, events } = await runWorld(plan);
    total.worlds++;
    total.withFaults += hits > 0 ? 1 : 0;
    total.faults += hits;
    total.failedJobs += failed ? 1 : 0;
    total.generations += generations;
    total.events += events;
    if (problems.length === 0) continue;
    total.wrong++;
    console.log(given['until-wrong'] ? `seed ${seed}: ${problems.join('; ')}` : await describeWrong(plan, problems));
    if (given['until-wrong']) break;
  }
  console.log(JSON.stringify(total));
  process.exitCode = total.wrong === 0 ? 0 : 1;
}

async function runInProcesses(): Promise<void> {
  const from = Number(given.from ?? 1);
  const end = from + Number(given.seeds ?? 1000);
  const endMs = systemClock.now() + Number(given.minutes ?? 24 * 60) * 60_000;
  const total = nothing();
  let next = from;
  const work = async (): Promise<void> => {
    while (next < end && systemClock.now() < endMs) {
      const first = next;
      next = Math.min(end, first + worldsPerProcess);
      const options = ['--from', String(first), '--seeds', String(next - first), '--jobs', '0'];
      const child = spawn(process.execPath, [...process.execArgv, fileURLToPath(import.meta.url), ...options], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      let said = '';
      child.stdout.on('data', (text) => (said += String(text)));
      await once(child, 'close');
      const lines = said.trimEnd().split('\n');
      const counted = lines.at(-1)?.startsWith('{"worlds"') ? (JSON.parse(lines.pop()!) as Total) : undefined;
      if (lines.length > 0 || counted === undefined)
        console.log([...lines, ...(counted ? [] : [`the process of seeds ${first} … ended`])].join('\n'));
      if (counted === undefined) total.wrong++;
      else for (const key of Object.keys(total) as (keyof Total)[]) total[key] += counted[key];
      if (given.result !== undefined) writeFileSync(given.result, `${JSON.stringify({ firstSeed: from, ...total }, null, 2)}\n`);
    }
  };
  await Promise.all(Array.from({ length: Number(given.jobs ?? cpus().length) }, work));
  console.log(JSON.stringify(total));
  process.exitCode = total.wrong === 0 ? 0 : 1;
}
