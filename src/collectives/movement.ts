/** The bytes that a program moves between ranks each time it runs: puts, loads from other ranks' memory and stores to it, and the
 *  mailbox's contents for ranks that cannot read it. Every byte counts for exactly one rank's program: the one that moves it. */
import type { Movement } from '../trace/traffic.ts';
import type { Location, Program, Loop, Step } from '../plan/ir.ts';

export interface MovementOptions {
  /** Bytes of an element of the dtype that the plan runs with. */
  readonly elementBytes: number;
  /** True for each rank whose memory can be loaded and stored from here. Mailboxes of the others have come with their announcements. */
  readonly loadStore: readonly boolean[];
}

/** Movements by pair of ranks of the plan. */
export function movementsOf(program: Program<Step | Loop>, { elementBytes, loadStore }: MovementOptions): Movement[] {
  const { rank } = program;
  const pairs = new Map<string, Movement>();
  const add: Add = (from, to, count, times = 1) => {
    if (from === to || count === 0) return;
    const key = `${from} ${to}`;
    const { bytes, transfers } = pairs.get(key) ?? { bytes: 0, transfers: 0 };
    pairs.set(key, { from, to, bytes: bytes + times * count * elementBytes, transfers: transfers + times });
  };
  const placeOf = ({ rank: place = rank, buffer }: Location): number => (buffer === 'mailbox' && !loadStore[place] ? rank : place);
  const mailed = program.entry.reduce((sum, { target }) => sum + target.count, 0);
  for (const [peer, isReached] of loadStore.entries()) if (!isReached) add(rank, peer, mailed);
  for (const step of program.channels.flat()) addStep(step, rank, placeOf, add);
  return [...pairs.values()];
}

type Add = (from: number, to: number, count: number, times?: number) => void;

function addStep(step: Step | Loop, rank: number, placeOf: (location: Location) => number, add: Add): void {
  switch (step.kind) {
    case 'loop':
      for (const each of step.steps) addStep(each, rank, placeOf, (from, to, count) => add(from, to, count, step.times));
      return;
    case 'put':
      return add(rank, step.peer, step.source.count);
    case 'copy':
      return add(placeOf(step.source), placeOf(step.target), step.source.count);
    case 'reduce':
      for (const source of step.sources) add(placeOf(source), rank, source.count);
      for (const target of step.targets) add(rank, placeOf(target), target.count);
      return;
    case 'signal':
    case 'wait':
    case 'flush':
      return;
  }
}
