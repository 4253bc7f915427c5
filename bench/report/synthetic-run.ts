/** The traces of a run that never was: ranks that compute, wait for a late one and all-reduce, as formatChromeTrace lays them out. The same
 *  seed gives the same files. Written in pieces: a run may be larger than memory. */
import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { seededRandom } from '../../src/base/random.ts';
import type { ChromeEvent, TraceMetadata } from '../../src/trace/chrome.ts';

export interface SyntheticRun {
  readonly ranks: number;
  readonly ranksPerHost: number;
  /** Steps of training; five to six events each. */
  readonly steps: number;
  readonly seed?: number;
}

/** Approximate bytes of a step's events. */
export const bytesPerStep = 1500;

const stepUs = 12_000;
const pieceBytes = 1 << 20;

/** @returns the number of bytes written. */
export function writeSyntheticRun(folder: string, run: SyntheticRun): number {
  mkdirSync(folder, { recursive: true });
  return Array.from({ length: run.ranks }, (_, rank) => writeRank(folder, rank, run)).reduce((sum, bytes) => sum + bytes, 0);
}

function writeRank(folder: string, rank: number, run: SyntheticRun): number {
  const file = openSync(join(folder, `trace-rank-${rank}.json`), 'w');
  let piece = `{"displayTimeUnit":"ms",\n"otherData":${JSON.stringify(metadataOf(rank, run))},\n"traceEvents":[`;
  let bytes = 0;
  let isFirst = true;
  const flush = (): void => {
    bytes += writeSync(file, piece);
    piece = '';
  };
  for (const event of eventsOf(rank, run)) {
    piece += `${isFirst ? '\n' : ',\n'}${JSON.stringify(event)}`;
    isFirst = false;
    if (piece.length > pieceBytes) flush();
  }
  piece += '\n]}\n';
  flush();
  closeSync(file);
  return bytes;
}

function metadataOf(rank: number, { ranks, ranksPerHost }: SyntheticRun): TraceMetadata {
  const memory = Math.floor(rank / ranksPerHost);
  const ofHost = (peer: number): boolean => Math.floor(peer / ranksPerHost) === memory;
  const peers = Array.from({ length: ranks }, (_, peer) => peer).filter(
    (peer) => peer !== rank && (ofHost(peer) || peer % ranksPerHost === rank % ranksPerHost),
  );
  const process = {
    ...{ rank, host: `node-${memory}`, pid: 4000 + rank, offsetMs: 0, memory, rates: { link: 1e-10, linkFrom: 'start' as const } },
    ...{ clockStartMs: 0, wallStart: '2026-11-20T12:00:00.000Z', dropped: 0 },
    traffic: peers.map((peer) => [rank, peer, ofHost(peer) ? 96 << 20 : 8 << 20, 400] as const),
  };
  return { format: 'shoal-trace', version: 1, processes: [process] };
}

/** Events of one rank. Each rank is late in some steps: then the others wait for it. */
function* eventsOf(rank: number, { ranks, steps, seed = 1 }: SyntheticRun): Generator<ChromeEvent> {
  const thread = (tid: number, name: string): ChromeEvent => ({ ph: 'M', name: 'thread_name', pid: rank, tid, ts: 0, args: { name } });
  yield* ['main', 'world waits', 'world'].map((name, tid) => thread(tid, name));
  const random = seededRandom(seed + rank);
  const site = 'train.ts:31';
  const peers = [rank === 0 ? '' : `0-${rank - 1}`, rank === ranks - 1 ? '' : `${rank + 1}-${ranks - 1}`]
    .filter((text) => text !== '')
    .join();
  for (let step = 0; step < steps; step++) {
    const begin = step * stepUs;
    const culprit = (step * 7919) % ranks;
    const all = begin + 6000 + 2000;
    const arrived = rank === culprit ? all : begin + 5000 + Math.round(1500_000 * random.next()) / 1e3;
    yield { ph: 'X', cat: 'user', name: 'forward and backward', pid: rank, tid: 0, ts: begin, dur: arrived - begin, args: { step } };
    yield {
      ph: 'C',
      cat: 'memory',
      name: 'resident memory',
      pid: rank,
      tid: 2,
      ts: begin,
      args: { bytes: 3e8 + rank * 1e6 + step * 1000 },
    };
    let from = all;
    for (let bucket = 0; bucket < 3; bucket++) {
      const bytes = 1 << (20 + bucket);
      const common = {
        group: 'world',
        dtype: 'float32',
        count: bytes / 4,
        bytes,
        op: 'sum',
        algorithm: 'fairring',
        path: 'comm thread',
        peers,
        site,
      };
      const sequence = 3 * step + bucket;
      if (bucket === 0 && arrived < all) {
        const args = { sequence, waitedFor: culprit, ...common };
        yield { ph: 'X', name: 'all-reduce wait', pid: rank, tid: 1, ts: arrived, dur: all - arrived, cat: 'collective', args };
      }
      const dur = bytes / 4000 + Math.round(100_000 * random.next()) / 1e3;
      yield { ph: 'X', name: 'all-reduce fairring', pid: rank, tid: 2, ts: from, dur, cat: 'collective', args: { sequence, ...common } };
      from += dur + 5;
    }
  }
}
