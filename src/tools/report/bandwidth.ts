/** Bandwidths of calls by nccl-tests' measure, beside the measured bandwidth of the links or the memory that they went over. */
import { busBound, busFactor, type BusOperation, type MeasuredBytes } from '../../collectives/bus-bandwidth.ts';
import { ranksIn } from '../../membership/rank-ranges.ts';
import { collectives } from '../../plan/ir.ts';
import type { TraceMetadata } from '../../trace/chrome.ts';
import type { ReportRates } from './data/report-data.ts';

type Processes = TraceMetadata['processes'];

const operations: ReadonlySet<string> = new Set<BusOperation>(collectives.filter((name) => name !== 'barrier'));

/** The ranks that take part in a call. */
export interface CallShape {
  readonly ranks: number;
  /** Ranks of each set that shares memory; undefined: unknown. */
  readonly hosts: readonly number[] | undefined;
}

/** 10⁹ bytes per second. */
export interface CallBandwidth {
  readonly bus: number;
  /** Null: nothing was measured that limits it. */
  readonly bound: number | null;
}

export class Bandwidths {
  readonly rates: ReportRates;
  readonly #memoryOf: ReadonlyMap<number, number | undefined>;
  readonly #shapes = new Map<string, CallShape | undefined>();
  readonly #most: number;

  constructor(processes: Processes) {
    this.rates = ratesOf(processes);
    this.#memoryOf = new Map(processes.map(({ rank, memory }) => [rank, memory]));
    this.#most = processes.reduce((most, { rank }) => Math.max(most, rank), 0);
  }

  /** @param peers as a span names them. @returns undefined where that makes no sense. */
  shapeOf(rank: number, peers: string): CallShape | undefined {
    const key = `${rank} ${peers}`;
    if (!this.#shapes.has(key)) this.#shapes.set(key, this.#read(rank, peers));
    return this.#shapes.get(key);
  }

  of(kind: string, { ranks, hosts }: CallShape, bytes: number, us: number): CallBandwidth | undefined {
    if (!operations.has(kind) || !(us > 0) || bytes === 0) return undefined;
    const operation = kind as BusOperation;
    const { linkBandwidth, copyBandwidth } = this.rates;
    const byteOf = (bandwidth: number | null): number | undefined => (bandwidth === null ? undefined : 1e-9 / bandwidth);
    const measured: MeasuredBytes = { link: byteOf(linkBandwidth), copy: byteOf(copyBandwidth) };
    const bound = hosts && busBound(operation, hosts, measured);
    // A span has the bytes of all ranks together; nccl-tests count the buffer of one.
    const moved = operation === 'all-to-all' ? bytes / ranks : bytes;
    return { bus: (moved / us / 1e3) * busFactor(operation, ranks), bound: bound === undefined ? null : bound / 1e9 };
  }

  #read(rank: number, peers: string): CallShape | undefined {
    try {
      const ranks = [rank, ...ranksIn(peers, this.#most + 1)];
      const counts = new Map<number | undefined, number>();
      for (const each of ranks) {
        const memory = this.#memoryOf.get(each);
        counts.set(memory, (counts.get(memory) ?? 0) + 1);
      }
      return { ranks: ranks.length, hosts: counts.has(undefined) ? undefined : [...counts.values()].sort((a, b) => a - b) };
    } catch {
      return undefined;
    }
  }
}

/** Ranks agree on links; of what each can copy, the fastest bounds. */
function ratesOf(processes: Processes): ReportRates {
  const linked = processes.find(({ rates }) => rates?.link !== undefined)?.rates;
  const copies = processes.flatMap(({ rates }) => rates?.copy ?? []);
  const copy = copies.reduce((least, each) => Math.min(least, each), Infinity);
  return {
    linkBandwidth: linked?.link === undefined ? null : 1e-9 / linked.link,
    linkFrom: linked?.linkFrom ?? 'start',
    copyBandwidth: Number.isFinite(copy) ? 1e-9 / copy : null,
  };
}
