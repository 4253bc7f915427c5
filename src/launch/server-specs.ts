/** The processes that serve a job's parameters on this node, and the variables that tell all processes about them. The servers' program
 *  and its variables are given: this file knows numbers of processes only. */
import { ShoalError } from '../base/errors.ts';

/** Parameter servers of a job, the same on every node. */
export interface ServerOptions {
  /** Program and arguments of a server. */
  readonly command: readonly string[];
  /** Servers in the job, in all groups; dealt to the nodes in turn. */
  readonly servers: number;
  /** Default 1. */
  readonly serverGroups?: number;
  /** Default 1. */
  readonly workerGroups?: number;
  /** 2: every server has a standby. Default 1. */
  readonly replicas?: number;
  /** Folder for the servers' checkpoints. Default: none. */
  readonly checkpointDir?: string;
  /** Failures after which each server is started again. Default 3 with checkpoints or standbys, else 0. */
  readonly restarts?: number;
  /** The job goes on while it has so many workers. Default: it needs all. */
  readonly workersMin?: number | undefined;
}

export interface ServerPlace {
  readonly role: 'server' | 'standby';
  readonly index: number;
  readonly restarts: number;
  /** The place of the process that goes on when this server ends: this node or another. */
  readonly substitute: 'none' | 'here' | 'elsewhere';
}

/** The variables that workers and servers read; ps/job/environment.ts is their reader. */
export function serverVariables(options: ServerOptions, workers: number): Record<string, string> {
  const { servers, serverGroups = 1, workerGroups = 1, replicas = 1, checkpointDir, workersMin } = options;
  return {
    SHOAL_ROLE: 'worker',
    SHOAL_WORKERS: String(workers),
    SHOAL_WORKER_GROUPS: String(workerGroups),
    SHOAL_SERVERS: String(servers),
    SHOAL_SERVER_GROUPS: String(serverGroups),
    SHOAL_REPLICAS: String(replicas),
    ...(workersMin === undefined ? {} : { SHOAL_WORKERS_MIN: String(workersMin) }),
    ...(checkpointDir === undefined ? {} : { SHOAL_CHECKPOINT_DIR: checkpointDir }),
  };
}

/** This node's share. Standbys are dealt one node further than their servers. */
export function serverPlaces(options: ServerOptions, node: number, nodes: number): ServerPlace[] {
  const { servers, replicas = 1, checkpointDir } = options;
  if (servers < 1) throw new ShoalError('usage', `--servers ${servers}: at least 1 is needed`);
  const restarts = options.restarts ?? (checkpointDir === undefined && replicas === 1 ? 0 : 3);
  const substitute = replicas === 1 ? 'none' : nodes === 1 ? 'here' : 'elsewhere';
  const places: ServerPlace[] = [];
  for (let index = 0; index < servers; index++) {
    if (index % nodes === node) places.push({ role: 'server', index, restarts, substitute });
    if (replicas === 2 && (index + 1) % nodes === node) places.push({ role: 'standby', index, restarts, substitute });
  }
  return places;
}
