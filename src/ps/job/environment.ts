/** A process's role in a parameter-server job, from its launcher's variables. `shoal run --workers --servers` sets:
 *
 *      SHOAL_ROLE             worker │ server │ standby
 *      SHOAL_WORKERS          processes with workers in the job          SHOAL_WORKER_GROUPS   groups of them
 *      SHOAL_SERVERS          servers in the job, in all groups          SHOAL_SERVER_GROUPS   groups of them
 *      SHOAL_REPLICAS         2: each server has a standby               SHOAL_SERVER          servers: which one
 *      SHOAL_CHECKPOINT_DIR   where servers save their state             SHOAL_WORKERS_MIN     the job goes on with so many; unset: with all
 *
 *  and the variables of ranks (store/environment.ts), through which all find the job's store. Pure. */
import { ShoalError } from '../../base/errors.ts';
import type { Environment } from '../../base/settings/settings.ts';
import { checkTopology, type KVTopology } from '../protocol/topology.ts';

export interface KVPlace {
  readonly role: 'worker' | 'server' | 'standby';
  readonly topology: KVTopology;
  /** Processes with workers. */
  readonly processes: number;
  /** They come and go. */
  readonly elastic: boolean;
  /** Servers and standbys. */
  readonly serverGroup: number;
  readonly server: number;
  readonly checkpointDir: string | undefined;
}

export interface PlaceOptions {
  /** `dist_async`: the workers of each process are a group of their own. */
  readonly async: boolean;
  /** Workers (threads) per process. */
  readonly localWorkers: number;
}

/** @throws ShoalError `config` naming the variables that are missing or contradict each other. */
export function detectPlace(environment: Environment, { async, localWorkers }: PlaceOptions): KVPlace {
  const role = environment['SHOAL_ROLE'] ?? '';
  if (role !== 'worker' && role !== 'server' && role !== 'standby') {
    throw new ShoalError(
      'config',
      role === ''
        ? 'no parameter servers: SHOAL_ROLE is not set; start the script with `shoal run --workers <n> --servers <m>`, or use a local or collective store'
        : `SHOAL_ROLE='${role}' is not worker, server or standby`,
    );
  }
  const processes = count(environment, 'SHOAL_WORKERS');
  const workers = processes * localWorkers;
  const servers = count(environment, 'SHOAL_SERVERS');
  const serverGroups = count(environment, 'SHOAL_SERVER_GROUPS', 1);
  const workerGroups = async ? workers / localWorkers : count(environment, 'SHOAL_WORKER_GROUPS', 1);
  const workersPerGroup = share({ workers, workerGroups, what: 'workers', variable: 'SHOAL_WORKER_GROUPS' });
  const serversPerGroup = share({ workers: servers, workerGroups: serverGroups, what: 'servers', variable: 'SHOAL_SERVER_GROUPS' });
  if (workersPerGroup % localWorkers !== 0) {
    const message = `a process with ${localWorkers} workers would belong to two groups of ${workersPerGroup}; choose SHOAL_WORKER_GROUPS so that each group is whole processes`;
    throw new ShoalError('config', message);
  }
  const replicas = count(environment, 'SHOAL_REPLICAS', 1) as KVTopology['replicas'];
  const topology: KVTopology = { workerGroups, workersPerGroup, serverGroups, serversPerGroup, replicas };
  checkTopology(topology);
  const index = role === 'worker' ? 0 : natural(environment, 'SHOAL_SERVER');
  if (index >= servers) throw new ShoalError('config', `SHOAL_SERVER=${index} must be below SHOAL_SERVERS=${servers}`);
  const directory = environment['SHOAL_CHECKPOINT_DIR'];
  return {
    role,
    topology,
    processes,
    elastic: natural(environment, 'SHOAL_WORKERS_MIN', 0) > 0,
    serverGroup: Math.floor(index / serversPerGroup),
    server: index % serversPerGroup,
    checkpointDir: directory === '' ? undefined : directory,
  };
}

function share(numbers: { workers: number; workerGroups: number; what: string; variable: string }): number {
  const { workers, workerGroups, what, variable } = numbers;
  if (workers % workerGroups === 0) return workers / workerGroups;
  throw new ShoalError('config', `${workers} ${what} cannot be split into ${workerGroups} equal groups (${variable}); use a divisor`);
}

function count(environment: Environment, name: string, fallback?: number): number {
  const value = natural(environment, name, fallback);
  if (value < 1) throw new ShoalError('config', `${name}=${value} must be at least 1`);
  return value;
}

function natural(environment: Environment, name: string, fallback?: number): number {
  const text = environment[name]?.trim() ?? '';
  if (text === '' && fallback !== undefined) return fallback;
  if (/^\d{1,7}$/.test(text)) return Number(text);
  throw new ShoalError(
    'config',
    text === '' ? `${name} is not set; \`shoal run --servers\` sets it` : `${name}='${text}' is not a whole number`,
  );
}
