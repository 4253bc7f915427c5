/** Options of a launcher, and what comes of its job. */
import type { Writable } from 'node:stream';
import type { Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import type { Random } from '../base/random.ts';
import type { StreamNetwork } from '../fabric/stream/stream-network.ts';
import type { Guard } from './guard.ts';
import type { JobProcessOptions } from './job-processes.ts';
import type { JobWatch } from './job-watch.ts';
import type { JobFailure } from './node-records.ts';
import type { RouteOptions } from './output/output-routes.ts';
import type { WorldChange } from './world-ledger.ts';

export interface LaunchOptions extends RouteOptions, JobProcessOptions {
  readonly clock: Clock;
  readonly random: Random;
  /** The starter of processes, and the network of the job's store. Default: the system's. */
  readonly surroundings?: { readonly startGuard: () => Guard; readonly network: StreamNetwork };
  readonly directory: string;
  /** Nodes with which the job begins. Default 1. */
  readonly nodes?: number | undefined;
  /** Most nodes at once: they may come and go while the job runs. Default: all begin, and stay. */
  readonly nodesMax?: number | undefined;
  /** Default 0; where nodes come and go, any number. */
  readonly node?: number | undefined;
  /** Address of node 0. Default 127.0.0.1, for one node. */
  readonly masterAddress?: string;
  /** Default: any free port for one node, 29500 for several. */
  readonly masterPort?: number;
  /** Required for several nodes. Default: fresh. */
  readonly secret?: string;
  /** Name of the job. Default: random for one node, `shoal` for several. */
  readonly job?: string;
  /** For one node, or nodes that come and go, without tasks of a graph: the job goes on without ranks that end badly while so many are
   *  left, and each is started again alone `maxRestarts` times. Default: it needs all; where nodes come and go, as many as `nodes` have. */
  readonly ranksMin?: number | undefined;
  /** Time that the other ranks have to fail by themselves. Default 5000. */
  readonly graceMs?: number;
  /** Time from SIGTERM, or from a signal of the user's, to SIGKILL. Default 10,000. */
  readonly killAfterMs?: number;
  /** Default 5 minutes. */
  readonly joinTimeoutMs?: number;
  readonly stdout: Writable;
  readonly stderr: Writable;
  /** `all` (default): a line per start and end of a rank; `failures`: only what goes wrong. */
  readonly events?: 'all' | 'failures';
}

export interface LaunchResult {
  /** 0, the failing rank's exit code, or 128 + signal. */
  readonly exitCode: number;
  readonly failure: JobFailure | undefined;
  /** Changes of the world, in their order; none where the job needs all ranks. */
  readonly changes: readonly WorldChange[];
}

export interface Launch {
  /** Rejects with `ShoalError` when the job could not be started at all. */
  readonly result: Promise<LaunchResult>;
  /** The user's signal: forwarded to all ranks; a second one, not at the same moment, kills them at once. */
  signal(name: NodeJS.Signals): void;
  /** `stdout` can no longer be written, and what the ranks say is lost: they are ended as by SIGTERM. */
  outputLost(cause: Error): void;
  /** The same as `watchJob`. */
  watch(of: 'job' | 'node'): Promise<JobWatch>;
}

/** @throws ShoalError `usage`, `config`. */
export function checkSeveralNodes(options: LaunchOptions): void {
  const { nodes = 1, nodesMax = nodes, node = 0, masterAddress, secret } = options;
  if (node >= nodesMax) throw new ShoalError('usage', `--node-rank ${node} must be below --nnodes ${nodesMax}`);
  if (masterAddress === undefined)
    throw new ShoalError('usage', 'several nodes need --master-addr, an address of node 0 that all can reach');
  if (secret === undefined || secret === '') {
    throw new ShoalError('config', 'several nodes need a secret: set SHOAL_SECRET, or give --secret-file, the same on every node');
  }
}
