/** The engine against the sequential model: random programs, whose operations complete in random orders.
 *  `ENGINE_PROGRAMS=100000 npx vitest run src/engine` runs more of them. */
import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { VirtualClock } from '../base/clock.ts';
import { isShoalError, type ShoalError } from '../base/errors.ts';
import { seededRandom, type Random } from '../base/random.ts';
import { DependencyEngine } from './engine.ts';
import type { AsyncFunction } from './operation.ts';
import { orderByPriority, programs, runSequentially, valueOf, type Program } from './testing/program.ts';
import type { Variable } from './variable.ts';

const numRuns = Number(process.env.ENGINE_PROGRAMS ?? 2000);

/** The data that variables stand for, with its present readers and writers. */
class Memory {
  readonly values: number[];
  readonly #readers: number[];
  readonly #writers: number[];

  constructor(size: number) {
    [this.values, this.#readers, this.#writers] = [0, 0, 0].map((zero) => Array.from({ length: size }, () => zero));
  }

  begin(reads: readonly number[], writes: readonly number[]): number[] {
    for (const index of reads) this.#readers[index]++;
    for (const index of writes) this.#writers[index]++;
    for (const index of [...reads, ...writes]) {
      const [readers, writers] = [this.#readers[index], this.#writers[index]];
      expect(writers === 0 || (writers === 1 && readers === 0), `variable ${index}: ${readers} readers, ${writers} writers`).toBe(true);
    }
    return [...reads, ...writes].map((index) => this.values[index]);
  }

  end(reads: readonly number[], writes: readonly number[], value: number | undefined): void {
    for (const index of reads) this.#readers[index]--;
    for (const index of writes) this.#writers[index]--;
    if (value !== undefined) for (const index of writes) this.values[index] = value;
  }
}

const microtasks = async (): Promise<void> => {
  for (let turn = 0; turn < 4; turn++) await Promise.resolve();
};

const causeOf = (error: unknown): number => Number(isShoalError(error) ? (error.operation as string) : NaN);

async function settled(promise: Promise<void>): Promise<ShoalError | undefined> {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error as ShoalError;
  }
}

/** Runs a program; `random` decides the order of parallel work. */
async function run(program: Program, random: Random): Promise<void> {
  const choose = (bound: number): number => random.integer(bound);
  const engine = new DependencyEngine({ clock: new VirtualClock() });
  const memory = new Memory(program.variables);
  const variables = Array.from({ length: program.variables }, (_, index) => engine.newVariable(String(index)));
  const ran: number[] = [];
  const poisoned: number[] = [];
  const running: (() => void)[] = [];
  const pick = (indices: readonly number[]): Variable[] => indices.map((index) => variables[index]);
  for (const [number, { reads, writes, priority, kind }] of program.operations.entries()) {
    const operate: AsyncFunction = (onComplete) => {
      ran.push(number);
      const value = valueOf(number, memory.begin(reads, writes));
      const end = (error?: Error): void => {
        memory.end(reads, writes, error === undefined ? value : undefined);
        onComplete(error);
      };
      if (kind === 'sync') return end();
      if (kind === 'async') return void running.push(() => end());
      if (kind === 'fails') return void running.push(() => end(new Error('failed')));
      memory.end(reads, writes, undefined);
      if (kind === 'rejects') return Promise.reject(new Error('rejected')) as unknown as void;
      throw new Error('thrown');
    };
    const options = { priority, name: String(number), onPoisoned: () => void poisoned.push(number) };
    engine.pushAsync(operate, pick(reads), pick(writes), options);
    // Some operations run before the rest is pushed.
    while (running.length > 0 && choose(4) === 0) running.splice(choose(running.length), 1)[0]();
    if (choose(3) === 0) await microtasks();
  }
  const outcome = runSequentially(program);
  const all = settled(engine.waitForAll());
  const each = variables.map((variable) => settled(engine.waitForVar(variable)));
  // Nothing waits for the event loop: these programs are shorter than its turns.
  await microtasks();
  while (running.length > 0) {
    running.splice(choose(running.length), 1)[0]();
    if (running.length === 0 || choose(2) === 0) await microtasks();
  }
  const failure = await all;
  expect(failure === undefined ? undefined : causeOf(failure)).toBe(outcome.failure);
  const errors = await Promise.all(each);
  expect(errors.map((error) => (error === undefined ? undefined : causeOf(error)))).toEqual(outcome.poisonedBy);
  expect(ran.toSorted((a, b) => a - b)).toEqual(outcome.ran);
  const skipped = program.operations.flatMap((_, number) => (outcome.ran.includes(number) ? [] : [number]));
  expect(poisoned.toSorted((a, b) => a - b)).toEqual(skipped);
  memory.values.forEach((value, index) => outcome.poisonedBy[index] === undefined && expect(value).toBe(outcome.values[index]));
  const { pushed, completed } = engine.statistics;
  expect(completed).toBe(pushed);
}

it('gives the results of the same operations one after the other, whatever order they complete in', async () => {
  const property = fc.asyncProperty(programs(['sync', 'async', 'async', 'async']), fc.nat(), (program, seed) =>
    run(program, seededRandom(seed)),
  );
  await fc.assert(property, { numRuns });
});

it('poisons variables that depend on a failure, and no others', async () => {
  const kinds = ['sync', 'async', 'async', 'throws', 'fails', 'rejects'] as const;
  const property = fc.asyncProperty(programs(kinds), fc.nat(), (program, seed) => run(program, seededRandom(seed)));
  await fc.assert(property, { numRuns });
});

it('runs operations that could run by priority, then in the order of pushes', async () => {
  const property = fc.asyncProperty(programs(['sync']), async (program) => {
    const engine = new DependencyEngine({ clock: new VirtualClock() });
    const variables = Array.from({ length: program.variables }, () => engine.newVariable());
    const ran: number[] = [];
    for (const [number, { reads, writes, priority }] of program.operations.entries()) {
      const pick = (indices: readonly number[]): Variable[] => indices.map((index) => variables[index]);
      engine.pushSync(() => void ran.push(number), pick(reads), pick(writes), { priority });
    }
    await engine.waitForAll();
    expect(ran).toEqual(orderByPriority(program));
  });
  await fc.assert(property, { numRuns });
});
