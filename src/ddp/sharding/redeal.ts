/** State that is dealt anew: every rank names the arrays that it has and those that it needs, and gets what it lacks from ranks that have
 *  it. All compute the same moves, and make them in one all-to-all.
 *
 *      has      rank 0: a b    rank 1: b c    rank 2: c a                  b ─▶ rank 2
 *      needs    rank 0: a b    rank 1: b c    rank 2: b c                  of two that have it, the one that sends less
 *
 *  It must not know what the arrays are. */
import { bytesOf } from '../../base/bytes.ts';
import { ShoalError } from '../../base/errors.ts';
import { sum } from '../../base/numbers.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';

/** The part of a process group that dealing uses. */
export type RedealGroup = Pick<ProcessGroup, 'rank' | 'size' | 'tensor' | 'release' | 'allGatherObject' | 'allToAll'>;

type Arrays = Readonly<Record<string, ArrayBufferView>>;

interface Move {
  readonly name: string;
  readonly bytes: number;
  readonly from: number;
  readonly to: number;
}

/** Collective. Fills `needed` with the arrays of these names. @param held this rank's: those of a name are alike on all ranks.
 *  @throws ShoalError `aborted`, on all ranks, when nobody has one of them; the group's error. Then `needed` is undefined. */
export async function redeal(group: RedealGroup, held: Arrays, needed: Arrays): Promise<void> {
  const { rank } = group;
  const sizes = Object.entries(needed).map(([name, { byteLength }]) => [name, byteLength] as const);
  const reports = await group.allGatherObject({ held: Object.keys(held), needed: sizes }, { name: 'ddp/zero-holders' });
  const moves = movesOf(reports);
  for (const [name, array] of Object.entries(needed)) if (held[name]) bytesOf(array).set(bytesOf(held[name]));
  const [out, into] = [moves.filter(({ from }) => from === rank), moves.filter(({ to }) => to === rank)];
  const bytesBy = (those: readonly Move[], end: 'from' | 'to'): number[] =>
    reports.map((_, peer) => sum(those.filter((move) => move[end] === peer).map(({ bytes }) => bytes)));
  const [outputSplits, inputSplits] = [bytesBy(into, 'from'), bytesBy(out, 'to')];
  const input = group.tensor('uint8', [sum(inputSplits)]);
  const output = group.tensor('uint8', [sum(outputSplits)]);
  try {
    let at = 0;
    for (const { name, bytes } of out.toSorted((a, b) => a.to - b.to)) {
      input.data.set(bytesOf(held[name]), at);
      at += bytes;
    }
    await group.allToAll(output, input, { inputSplits, outputSplits, name: 'ddp/zero-redeal' });
    at = 0;
    for (const { name, bytes } of into.toSorted((a, b) => a.from - b.from))
      bytesOf(needed[name]).set(output.data.subarray(at, (at += bytes)));
  } finally {
    for (const tensor of [input, output]) group.release(tensor);
  }
}

/** The same on all ranks, and in the same order. */
function movesOf(
  reports: readonly { readonly held: readonly string[]; readonly needed: readonly (readonly [string, number])[] }[],
): Move[] {
  const holders = reports.map(({ held }) => new Set(held));
  const sent = reports.map(() => 0);
  const lost = new Set<string>();
  const moves = reports.flatMap(({ needed }, to) =>
    needed.flatMap(([name, bytes]): Move[] => {
      if (holders[to].has(name)) return [];
      const from = [...holders.keys()].filter((rank) => holders[rank].has(name)).sort((a, b) => sent[a] - sent[b])[0];
      if (from === undefined) {
        lost.add(name);
        return [];
      }
      sent[from] += bytes;
      return [{ name, bytes, from, to }];
    }),
  );
  if (lost.size === 0) return moves;
  const [name] = lost;
  const message = `the state of a sharded optimiser is lost with its rank: '${name}'${lost.size > 1 ? ` and ${lost.size - 1} more` : ''}; start again from the last checkpoint, and with redundancy 1 it survives the loss of one rank`;
  throw new ShoalError('aborted', message, { operation: 'ddp/zero-redeal' });
}
