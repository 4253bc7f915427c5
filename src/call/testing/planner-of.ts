/** Planners of ranks of no world, for tests. */
import { readSettings, type Settings } from '../../base/settings/settings.ts';
import type { Topology } from '../../plan/topology.ts';
import { Planner, type WorldPlanning } from '../planner.ts';

type Given = Omit<WorldPlanning, 'settings' | 'selection'> &
  Partial<Pick<WorldPlanning, 'selection'> & Pick<Settings, 'order' | 'stagingBytes' | 'sliceBytes' | 'groupHosts'>> & {
    readonly rank: number;
    readonly topology: Topology;
    readonly loadStore?: readonly boolean[];
  };

export function plannerOf({ machine, selection = [], tuning, model, rank, topology, loadStore, ...settings }: Given): Planner {
  const globalRanks = topology.hosts.flat().sort((a, b) => a - b);
  const world = { machine, selection, tuning, model, settings: { ...readSettings({}), ...settings } };
  return new Planner(world, { id: 0, name: 'test', globalRanks, rank, topology }, loadStore);
}
