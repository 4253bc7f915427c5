/** The cost of the scheduler itself: tasks that finish as soon as they have started, through a queue by priority and credits of four links.
 *
 *    tsx bench/scheduler/run.ts [--tasks 100000] [--rounds 9] [--out bench/results/scheduler.json]
 *
 *  `tasks`: each posted alone. `parts`: of one tensor that is cut into as many. `queued`: all are posted before the first starts,
 *  so that the queues are as long as they can be. The time is from before the first post until the last task has ended. */
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import { systemClock, type Clock } from '../../src/base/clock.ts';
import { seededRandom } from '../../src/base/random.ts';
import { Core } from '../../src/scheduler/core.ts';
import type { Part } from '../../src/scheduler/task-parts.ts';
import { Task } from '../../src/scheduler/task.ts';
import { runLayeredStep } from '../../src/scheduler/testing/layered-step.ts';
import { programArguments } from '../arguments.ts';

export interface CoreBenchOptions {
  readonly tasks: number;
  /** Number of rounds; one more warms up. */
  readonly rounds: number;
  readonly clock: Clock;
}

export interface CoreBenchRow {
  readonly name: 'tasks' | 'parts' | 'queued';
  readonly tasks: number;
  readonly medianNsPerTask: number;
  readonly worstNsPerTask: number;
  /** CPU time, all threads: comparable also on a machine that does other things. */
  readonly medianCpuNsPerTask: number;
  readonly bestCpuNsPerTask: number;
  /** Checksum of the order in which tasks started: the same in every round. */
  readonly checksum: number;
}

const links = ['0', '1', '2', '3'];
const taskBytes = 100;

class BenchTask extends Task {
  readonly #running: BenchTask[];

  constructor(running: BenchTask[], options: { bytes: number; priority: number; link: string }) {
    super({ name: 'x', operation: 'push', ...options });
    this.#running = running;
  }

  protected part({ bytes }: Part, index: number): BenchTask {
    return new BenchTask(this.#running, { bytes, priority: this.priority, link: links[index % links.length] });
  }

  protected onDo(): void {
    this.#running.push(this);
  }
}

export function benchCore({ tasks, rounds, clock }: CoreBenchOptions): CoreBenchRow[] {
  return (['tasks', 'parts', 'queued'] as const).map((name) => {
    const nsPerTask: number[] = [];
    const cpuNsPerTask: number[] = [];
    let checksum = 0;
    for (let round = 0; round <= rounds; round++) {
      const startMs = clock.now();
      const before = process.cpuUsage();
      checksum = run(name, tasks, clock);
      const { user, system } = process.cpuUsage(before);
      if (round === 0) continue;
      nsPerTask.push(((clock.now() - startMs) * 1e6) / tasks);
      cpuNsPerTask.push(((user + system) * 1e3) / tasks);
    }
    for (const each of [nsPerTask, cpuNsPerTask]) each.sort((a, b) => a - b);
    const middle = Math.floor(nsPerTask.length / 2);
    return {
      name,
      tasks,
      medianNsPerTask: nsPerTask[middle],
      worstNsPerTask: nsPerTask[nsPerTask.length - 1],
      medianCpuNsPerTask: cpuNsPerTask[middle],
      bestCpuNsPerTask: cpuNsPerTask[0],
      checksum,
    };
  });
}

function run(name: CoreBenchRow['name'], count: number, clock: Clock): number {
  const random = seededRandom(1);
  const running: BenchTask[] = [];
  const core = new Core({ clock, creditBytes: 4 * taskBytes, partitionBytes: taskBytes });
  let checksum = 0;
  const finishSome = (left: number): void => {
    while (running.length > left) {
      const task = running.splice(0);
      for (const each of task) {
        checksum = (Math.imul(checksum, 31) + each.priority * 7 + each.index) | 0;
        each.notifyFinish();
      }
    }
  };
  if (name !== 'queued') core.start();
  if (name === 'parts') core.post(new BenchTask(running, { bytes: count * taskBytes, priority: 0, link: links[0] }));
  for (let k = 0; k < (name === 'parts' ? 0 : count); k++) {
    core.post(new BenchTask(running, { bytes: taskBytes, priority: random.integer(100), link: links[k % links.length] }));
    finishSome(12);
  }
  if (name === 'queued') core.start();
  finishSome(0);
  return checksum;
}

/** The example of ByteScheduler's document, on virtual time. */
function goldenExample(): { readonly fifo: number; readonly scheduled: number; readonly pushed: readonly number[] } {
  const step = { costs: [3, 6, 3], computeCost: 2 };
  const { end: scheduled, pushed } = runLayeredStep({ ...step, partition: 1, credit: 1, byPriority: true });
  return { fifo: runLayeredStep({ ...step, partition: 100, credit: 100, byPriority: false }).end, scheduled, pushed };
}

function main(): void {
  const { values } = programArguments(import.meta.url, {
    options: { tasks: { type: 'string', default: '100000' }, rounds: { type: 'string', default: '9' }, out: { type: 'string' } },
  });
  /** Load of the machine; above the number of CPUs it was busy with other things: the figures are then too high. */
  const loadBefore = os.loadavg()[0];
  const rows = benchCore({ tasks: Number(values.tasks), rounds: Number(values.rounds), clock: systemClock });
  for (const { name, tasks, medianNsPerTask, worstNsPerTask, medianCpuNsPerTask, checksum } of rows) {
    const [median, worst, cpu] = [medianNsPerTask, worstNsPerTask, medianCpuNsPerTask].map((ns) => `${(ns / 1000).toFixed(2)} µs`);
    console.log(
      `${name.padEnd(7)} ${tasks} tasks: median ${median} per task, of a processor ${cpu}, worst round ${worst}, checksum ${checksum}`,
    );
  }
  const golden = goldenExample();
  console.log(`contrived example: FIFO ${golden.fifo} units, scheduled ${golden.scheduled}, pushed ${golden.pushed.join(' ')}`);
  const machine = { cpu: os.cpus()[0]?.model ?? 'unknown', cpus: os.cpus().length, node: process.version, loadBefore };
  if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine, golden, rows }, null, 2)}\n`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
