/** The rounds at which a client that has come later enters. All servers tell how far their slots are, and wait for the client meanwhile;
 *  then it enters at the first round that no server has settled. Slots that are one round apart are of one step of the workers, of which
 *  some parameters are settled already; slots that are further apart are not pushed equally often, and are counted by themselves:
 *
 *      settled   server 0: 7 7 7 6 6    server 1: 6 6 2
 *      enters    server 0: 8 8 8 8 8    server 1: 8 8 3
 *
 *  Pure. */
import type { ParameterDirectory } from './parameter-directory.ts';
import { malformed } from './wire.ts';

type Slices = Pick<ParameterDirectory, 'firstPiece' | 'pieceServer' | 'pieceSlot'>;

/** Most numbers of a list. */
const countsMax = 2 ** 24;

/** The first round of the client, by server and slot: the same for all slices of a parameter. */
export function entryRounds(settled: readonly (readonly number[])[], directory: Slices): number[][] {
  const entries = new Map<number, number>();
  for (const each of [...new Set(settled.flat())].sort((a, b) => b - a)) entries.set(each, entries.get(each + 1) ?? each + 1);
  const rounds = settled.map((slots) => slots.map((each) => entries.get(each)!));
  const { firstPiece, pieceServer, pieceSlot } = directory;
  for (let parameter = 0; parameter + 1 < firstPiece.length; parameter++) {
    let most = 0;
    for (let piece = firstPiece[parameter]; piece < firstPiece[parameter + 1]; piece++)
      most = Math.max(most, rounds[pieceServer[piece]][pieceSlot[piece]]);
    for (let piece = firstPiece[parameter]; piece < firstPiece[parameter + 1]; piece++) rounds[pieceServer[piece]][pieceSlot[piece]] = most;
  }
  return rounds;
}

/** Numbers of which many are alike, as pairs: how often, which. */
export function packCounts(values: readonly number[]): number[] {
  const packed: number[] = [];
  for (const value of values) {
    if (packed.at(-1) === value) packed[packed.length - 2]++;
    else packed.push(1, value);
  }
  return packed;
}

/** @throws ShoalError `protocol`. */
export function unpackCounts(packed: readonly number[]): number[] {
  const values: number[] = [];
  for (let at = 0; at < packed.length; at += 2) {
    const [times, value] = packed.slice(at, at + 2);
    if (value === undefined || values.length + times > countsMax) throw malformed('a list of rounds');
    for (let k = 0; k < times; k++) values.push(value);
  }
  return values;
}
