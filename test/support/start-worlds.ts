/** Starts processes that open several worlds one after another, and reads their lines about each. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { startRanks, type RankProcess, type Ranks } from './ranks.ts';
import type { TestWorld } from './worlds.ts';

/** A line of a rank about a world. */
export interface Said {
  readonly world: string;
  readonly [key: string]: unknown;
}

/** One of the worlds. */
export interface OpenedWorld {
  readonly ranks: readonly RankProcess[];
  /** The first line of each of `ranks`, default all, that matches. Rejects when a process ends without one. */
  said<Line extends Said>(matches: (line: Line) => boolean, ranks?: readonly RankProcess[]): Promise<Line[]>;
  /** All lines of each rank, without the world's name: for a fixture that ends them with one that says `ended`. */
  linesOf(): Promise<Record<string, unknown>[][]>;
}

/** Makes a test per world, and one for the end of the processes. As many processes as the largest world has ranks run the
 *  fixture, which uses `inWorlds`. @param more.env further variables of the processes. @param more.mayWarn whether they may say something
 *  on stderr. */
export function testWorlds<World extends TestWorld>(
  fixture: string,
  worldsInAnyOrder: readonly World[],
  check: (opened: OpenedWorld, world: World) => Promise<void>,
  { env: more = {}, mayWarn = false }: { readonly env?: Readonly<Record<string, string>>; readonly mayWarn?: boolean } = {},
): void {
  // The largest worlds come first: no process waits for ranks that are busy in worlds without it.
  const worlds = worldsInAnyOrder.toSorted((a, b) => b.n - a.n);
  let folder: string;
  let started: Ranks;

  // oxlint-disable-next-line no-empty-pattern -- Vitest asks for a pattern here.
  beforeAll(async ({}, { tasks }) => {
    folder = await mkdtemp(join(tmpdir(), 'shoal-worlds-'));
    // The processes wait in a world until its test tells them to go on: those that `-t` leaves out are not opened.
    const leftOut = new Set(tasks.filter(({ mode }) => mode === 'skip').map(({ name }) => name));
    const opened = worlds.filter(({ name }) => !leftOut.has(name));
    const env = { ...more, WORLDS: JSON.stringify(opened), MEETING: folder };
    started = await startRanks({ fixture, n: Math.max(1, ...opened.map(({ n }) => n)), env });
  });

  afterAll(async () => {
    await started[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  const checkWorld = async (world: World): Promise<void> => {
    const ranks = started.ranks.slice(0, world.n);
    const said: OpenedWorld['said'] = (matches, of = ranks) =>
      Promise.all(of.map((rank) => rank.line<Parameters<typeof matches>[0]>((line) => line.world === world.name && matches(line))));
    const linesOf = async (): Promise<Record<string, unknown>[][]> => {
      await said(({ ended }) => ended === true);
      const own = (lines: readonly unknown[]): Said[] =>
        (lines as Said[]).filter((line) => line.world === world.name && !('ended' in line));
      const withoutName = (line: Said): Record<string, unknown> =>
        Object.fromEntries(Object.entries(line).filter(([key]) => key !== 'world'));
      return ranks.map(({ lines }) => own(lines).map(withoutName));
    };
    await check({ ranks, said, linesOf }, world);
  };
  for (const world of worlds) it(world.name, { timeout: 300_000 }, () => checkWorld(world));

  it(`and the processes end well${mayWarn ? '' : ', without a word to stderr'}`, async () => {
    for (const { code, stderr } of await started.outcomes()) expect({ code, stderr }).toEqual({ code: 0, stderr: mayWarn ? stderr : '' });
  });
}
