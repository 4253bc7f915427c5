/** Worlds of several ranks in this process that the cases of a file share: to start one takes longer than most cases. */
import assert from 'node:assert/strict';
import { afterAll } from 'vitest';
import type { ProcessGroup } from '../../../src/group/caller/types.ts';
import { startRanks, type InProcessWorld } from '../../../src/group/testing/in-process-world.ts';

/** Runs a body on every rank of a world of this size. */
export type OnRanks = <T>(size: number, body: (group: ProcessGroup) => Promise<T> | T) => Promise<T[]>;

/** Worlds that end after the last case of the file. */
export function sharedWorlds(): OnRanks {
  const worlds = new Map<number, Promise<InProcessWorld>>();
  afterAll(async () => {
    for (const world of worlds.values()) await (await world)[Symbol.asyncDispose]();
  });
  return async (size, body) => {
    const world = worlds.get(size) ?? startRanks(size);
    worlds.set(size, world);
    return (await world).each(body);
  };
}

/** A world of its own, for a body that breaks it. */
export async function onOwnRanks<T>(size: number, body: (group: ProcessGroup) => Promise<T> | T): Promise<T[]> {
  await using world = await startRanks(size);
  return await world.each(body);
}

/** Ranks 0…size − 1. */
export function ranksOf(size: number): number[] {
  return Array.from({ length: size }, (_, rank) => rank);
}

/** The sum of 0…n − 1. */
export function triangle(n: number): number {
  return (n * (n - 1)) / 2;
}

/** An array of integers by their places. */
export function integers(count: number, at: (i: number) => number): Int32Array {
  return Int32Array.from({ length: count }, (_, i) => at(i));
}

/** An array of doubles by their places. */
export function doubles(count: number, at: (i: number) => number): Float64Array {
  return Float64Array.from({ length: count }, (_, i) => at(i));
}

/** That each element is the expected one, quicker than a comparison of whole arrays. */
export function expectElements(actual: ArrayLike<number>, count: number, at: (i: number) => number, what: string): void {
  assert.equal(actual.length, count, `${what}: elements`);
  for (let i = 0; i < count; i++) if (!Object.is(actual[i], at(i))) assert.fail(`${what}: element ${i} is ${actual[i]}, not ${at(i)}`);
}
