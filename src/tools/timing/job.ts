/** The job of a benchmark's ranks, and rank 0's events; plain data. */
import type { CostModel } from '../../plan/cost.ts';
import type { Topology } from '../../plan/topology.ts';
import type { CompareOptions, ComparedRow } from './compare.ts';
import type { BenchOptions } from './options.ts';
import type { BenchEvent } from './report.ts';
import type { ScheduleEvent, ScheduleTuningOptions } from './schedule-tuning.ts';

/** `hosts`: number of hosts that the ranks of one machine play. */
export type RankJob = { readonly hosts: number } & (
  | { readonly kind: 'bench'; readonly options: BenchOptions }
  | { readonly kind: 'compare'; readonly options: CompareOptions }
  | { readonly kind: 'schedule'; readonly options: ScheduleTuningOptions }
  | { readonly kind: 'links' }
);

export type CompareEvent =
  | { readonly event: 'compared'; readonly row: ComparedRow }
  | {
      readonly event: 'comparison';
      readonly rows: readonly ComparedRow[];
      readonly topology: Topology;
      /** Measured when the world was set up; absent on one host. */
      readonly rates?: CostModel;
    };

/** The fabrics between the ranks of one machine. */
export interface Links {
  /** Ranks by machine. */
  readonly hosts: readonly (readonly number[])[];
  /** fabrics[a][b]: what rank a reaches rank b over. */
  readonly fabrics: readonly (readonly string[])[];
}

export type RankEvent = BenchEvent | CompareEvent | ScheduleEvent | { readonly event: 'links'; readonly links: Links };
