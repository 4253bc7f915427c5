/** The variables that a rank is started with: torchrun's names, so that scripts and tools of that world understand them,
 *  and Shoal's own. The secret goes by environment only; command lines can be read by every user of a host. */
import type { Environment } from '../base/settings/settings.ts';
import type { WorldSpec } from '../store/environment.ts';

/** A job as one of its nodes sees it. */
export interface JobPlace {
  readonly job: string;
  readonly secret: string;
  readonly node: number;
  /** Nodes with which the job begins. */
  readonly nodes: number;
  /** Most nodes at once, where they come and go while the job runs. Default: all begin, and stay. */
  readonly nodesMax?: number | undefined;
  /** The address at which node 0 serves and to which all connect. */
  readonly masterAddress: string;
}

export interface RankPlace extends JobPlace, Pick<WorldSpec, 'rank' | 'worldSize' | 'generation'> {
  readonly localRank: number;
  readonly localSize: number;
  readonly masterPort: number;
  readonly maxRestarts: number;
}

/** Variables that other launchers leave in our environment and that contradict ours. */
const foreign = ['SHOAL_MASTER_PORT', 'TORCHELASTIC_USE_AGENT_STORE'] as const;

/** Variables of parameter servers and their workers that are not settings. */
export const placeVariables: readonly string[] = [
  'SHOAL_ROLE',
  'SHOAL_WORKERS',
  'SHOAL_WORKERS_MIN',
  'SHOAL_WORKER_GROUPS',
  'SHOAL_SERVERS',
  'SHOAL_SERVER_GROUPS',
  'SHOAL_REPLICAS',
  'SHOAL_SERVER',
  'SHOAL_CHECKPOINT_DIR',
];

/** Roles in the job of a rank that has started this launcher: its parameter servers are not ours. */
const roles = [...placeVariables, 'SHOAL_JOIN', 'SHOAL_GROWS', 'SHOAL_PS'];

/** Folders in which a job's ranks write files that have their number in the name. */
const recordFolders = ['SHOAL_TRACE', 'SHOAL_FLIGHT_RECORDER_DIR'] as const;

/** The environment of a launcher, without what belongs to the job of a rank that has started it. A folder of records belongs to that job if
 *  its launcher says so in SHOAL_JOB_RECORDS; any other one was chosen for this job. */
export function withoutOuterJob(inherited: Environment): Environment {
  const environment: Record<string, string | undefined> = { ...inherited };
  for (const name of foreign) delete environment[name];
  if (environment['SHOAL_JOB'] === undefined) return environment;
  for (const name of roles) delete environment[name];
  const records = environment['SHOAL_JOB_RECORDS']?.split('\n') ?? [];
  for (const name of recordFolders) if (records.includes(environment[name] ?? '')) delete environment[name];
  return environment;
}

/** @param environment what `withoutOuterJob` leaves, and what this job adds to it. */
export function rankEnvironment(environment: Environment, place: RankPlace): Record<string, string | undefined> {
  const records = recordFolders.map((name) => environment[name] ?? '').filter((folder) => folder !== '');
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
    SHOAL_JOB_RECORDS: records.length === 0 ? undefined : records.join('\n'),
  };
}
