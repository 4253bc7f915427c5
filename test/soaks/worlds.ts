/** Worlds by their seeds: `--seeds 100000`, from `--from 1`, at most `--minutes 60`, counted in `--result file.json`. One, with its output:
 *  `--seed 17`, or `--world '{…}'` as a failure prints it. `--until-wrong`: no more after one that goes wrong, which does not shrink. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { systemClock } from '../../src/base/clock.ts';
import { describeWrong } from '../worlds/check-world.ts';
import { runWorld } from '../worlds/world.ts';
import { worldOf, type WorldPlan } from '../worlds/world-plan.ts';

const text = { type: 'string' } as const;
const { values: given } = parseArgs({
  options: {
    seed: text,
    world: text,
    seeds: text,
    from: text,
    minutes: text,
    result: text,
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
} else await runMany();

async function runMany(): Promise<void> {
  const from = Number(given.from ?? 1);
  const count = Number(given.seeds ?? 1000);
  const endMs = systemClock.now() + Number(given.minutes ?? 24 * 60) * 60_000;
  const total = { worlds: 0, withFaults: 0, faults: 0, failedJobs: 0, generations: 0, events: 0, wrong: 0 };
  for (let seed = from; seed < from + count && systemClock.now() < endMs; seed++) {
    const { problems, hits, failed, generations, events } = await runWorld(worldOf(seed));
    total.worlds++;
    total.withFaults += hits > 0 ? 1 : 0;
    total.faults += hits;
    total.failedJobs += failed ? 1 : 0;
    total.generations += generations;
    total.events += events;
    if (problems.length > 0) {
      total.wrong++;
      console.log(given['until-wrong'] ? `seed ${seed}: ${problems.join('; ')}` : await describeWrong(seed, problems));
      if (given['until-wrong']) break;
    }
    if (total.worlds % 1000 === 0) save(from, total);
  }
  save(from, total);
  console.log(JSON.stringify(total));
  process.exitCode = total.wrong === 0 ? 0 : 1;
}

function save(from: number, total: Record<string, number>): void {
  if (given.result === undefined) return;
  const before = existsSync(given.result) ? (JSON.parse(readFileSync(given.result, 'utf8')) as Record<string, unknown>) : {};
  writeFileSync(given.result, `${JSON.stringify({ ...before, firstSeed: from, ...total }, null, 2)}\n`);
}
