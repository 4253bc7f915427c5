/** A library that runs collectives of groups instead of Shoal's plans. Ranks compare the contracts of calls before it hears of them;
 *  tensors lie in shared memory, messages between two ranks and failures go over the links, as in any group. */
import type { Clock } from '../base/clock.ts';
import type { Settings } from '../base/settings/settings.ts';
import type { Kernels } from '../memory/kernels.ts';
import type { GroupSpec } from './group-spec.ts';
import type { Plans } from './planner.ts';
import type { Place } from './contract.ts';

/** The place is that of this process in Shoal's world. */
export interface CollectiveLibraryOptions extends Place {
  readonly clock: Clock;
  readonly kernels: Kernels;
  readonly settings: Settings;
}

/** The library as one world uses it, on the comm thread. */
export interface CollectiveLibrary {
  /** Makes the plans that run the group's calls. All ranks of the group are there, and call it together.
   *  @throws ShoalError `unsupported`, `config`, `timeout`, `system`. */
  openGroup(spec: GroupSpec, timeoutMs: number): Promise<Plans>;
  closeGroup(spec: GroupSpec): void;
  close(): void;
}
