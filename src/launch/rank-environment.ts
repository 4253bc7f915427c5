/** The variables that a rank is started with: torchrun's names, so that scripts and tools of that world understand them,
 *  and Shoal's own. The secret goes by environment only; command lines can be read by every user of a host. */
import type { Environment } from '../base/settings/settings.ts';

export interface RankPlace {
  readonly rank: number;
  readonly worldSize: number;
  readonly localRank: number;
  readonly localSize: number;
  readonly node: number;
  readonly nodes: number;
  readonly masterAddress: string;
  readonly masterPort: number;
  readonly job: string;
  readonly secret: string;
  readonly generation: number;
  readonly maxRestarts: number;
}

/** Variables that other launchers left in our own environment and that would contradict ours. */
const foreign = ['SHOAL_MASTER_PORT', 'TORCHELASTIC_USE_AGENT_STORE'] as const;

export function rankEnvironment(inherited: Environment, place: RankPlace): Record<string, string | undefined> {
  const environment: Record<string, string | undefined> = { ...inherited };
  for (const name of foreign) delete environment[name];
  return {
    ...environment,
    RANK: String(place.rank),
    WORLD_SIZE: String(place.worldSize),
    LOCAL_RANK: String(place.localRank),
    LOCAL_WORLD_SIZE: String(place.localSize),
    GROUP_RANK: String(place.node),
    GROUP_WORLD_SIZE: String(place.nodes),
    MASTER_ADDR: place.masterAddress,
    MASTER_PORT: String(place.masterPort),
    TORCHELASTIC_RUN_ID: place.job,
    TORCHELASTIC_RESTART_COUNT: String(place.generation),
    TORCHELASTIC_MAX_RESTARTS: String(place.maxRestarts),
    SHOAL_JOB: place.job,
    SHOAL_SECRET: place.secret,
  };
}
