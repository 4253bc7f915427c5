/** The job of a benchmark's ranks, and rank 0's events of a comparison; plain data. */
import type { CostModel } from '../../plan/cost.ts';
import type { Topology } from '../../plan/topology.ts';
import type { CompareOptions, ComparedRow } from './compare.ts';
import type { BenchOptions } from './options.ts';
import type { ScheduleTuningOptions } from './schedule-tuning.ts';

/** `hosts`: number of hosts that the ranks of one machine play. */
export type RankJob =
  | { readonly kind: 'bench'; readonly hosts: number; readonly options: BenchOptions }
  | { readonly kind: 'compare'; readonly hosts: number; readonly options: CompareOptions }
  | { readonly kind: 'schedule'; readonly hosts: number; readonly options: ScheduleTuningOptions };

export type CompareEvent =
  | { readonly event: 'compared'; readonly row: ComparedRow }
  | {
      readonly event: 'comparison';
      readonly rows: readonly ComparedRow[];
      readonly topology: Topology;
      readonly rates?: CostModel;
    };
