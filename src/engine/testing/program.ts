/** Random programs for an engine, and their expected results: the operations one after the other, in the order of their pushes. */
import * as fc from 'fast-check';

export interface ProgramOperation {
  readonly reads: readonly number[];
  readonly writes: readonly number[];
  readonly priority: number;
  /** Way in which the operation ends: completes within its function, or later, or fails in one of several ways. */
  readonly kind: 'sync' | 'async' | 'throws' | 'fails' | 'rejects';
}

export interface Program {
  readonly variables: number;
  readonly operations: readonly ProgramOperation[];
}

export function programs(kinds: readonly ProgramOperation['kind'][], operationsMax = 14): fc.Arbitrary<Program> {
  return fc.integer({ min: 1, max: 5 }).chain((variables) =>
    fc.record({
      variables: fc.constant(variables),
      operations: fc.array(
        fc
          .record({
            // The use of each variable: not named, read, or written.
            uses: fc.array(fc.constantFrom('none', 'none', 'read', 'write'), { minLength: variables, maxLength: variables }),
            priority: fc.integer({ min: -1, max: 2 }),
            kind: fc.constantFrom(...kinds),
          })
          .map(({ uses, priority, kind }) => ({ reads: indicesOf(uses, 'read'), writes: indicesOf(uses, 'write'), priority, kind })),
        { minLength: 1, maxLength: operationsMax },
      ),
    }),
  );
}

function indicesOf(uses: readonly string[], use: string): number[] {
  return uses.flatMap((each, index) => (each === use ? [index] : []));
}

/** The value that an operation writes: different for everything that it has seen. */
export function valueOf(operation: number, seen: readonly number[]): number {
  return seen.reduce((sum, value) => (Math.imul(sum, 31) + value) | 0, operation + 1);
}

export interface Outcome {
  /** Value of each variable. */
  readonly values: readonly number[];
  /** The operation by which each variable is poisoned. */
  readonly poisonedBy: readonly (number | undefined)[];
  /** Operations that have run. */
  readonly ran: readonly number[];
  /** The operation whose error `waitForAll` reports. */
  readonly failure: number | undefined;
}

export function runSequentially({ variables, operations }: Program): Outcome {
  const values = Array.from({ length: variables }, () => 0);
  const poisonedBy: (number | undefined)[] = Array.from({ length: variables });
  const ran: number[] = [];
  let failure: number | undefined;
  for (const [number, { reads, writes, kind }] of operations.entries()) {
    const uses = [...reads, ...writes];
    const poison = uses.map((index) => poisonedBy[index]).find((by) => by !== undefined);
    if (poison === undefined) ran.push(number);
    const fails = kind === 'throws' || kind === 'fails' || kind === 'rejects';
    const failed = poison ?? (fails ? number : undefined);
    failure ??= failed;
    if (failed === undefined) {
      const value = valueOf(
        number,
        uses.map((index) => values[index]),
      );
      for (const index of writes) values[index] = value;
    } else for (const index of writes) poisonedBy[index] = failed;
  }
  return { values, poisonedBy, ran, failure };
}

/** The order in which functions that complete by themselves run: again and again the first by priority, then by push, of those
 *  that conflict with no earlier operation that has not run. */
export function orderByPriority({ operations }: Program): number[] {
  const order: number[] = [];
  while (order.length < operations.length) {
    const left = operations.flatMap((_, number) => (order.includes(number) ? [] : [number]));
    const ready = left.filter((number) => left.every((other) => other >= number || !conflict(operations[number], operations[other])));
    ready.sort((a, b) => operations[b].priority - operations[a].priority || a - b);
    order.push(ready[0]);
  }
  return order;
}

function conflict(a: ProgramOperation, b: ProgramOperation): boolean {
  const touches = (writes: readonly number[], other: ProgramOperation): boolean =>
    writes.some((index) => other.reads.includes(index) || other.writes.includes(index));
  return touches(a.writes, b) || touches(b.writes, a);
}
