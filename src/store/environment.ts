/** This process's place among the others of its job, read from the variables that the launcher set: Shoal's own, torchrun's,
 *  Open MPI's, PMI (MPICH, hydra), Slurm's, Kubernetes indexed jobs, or none (a world of one). Pure: variables in, a
 *  `WorldSpec` out. It opens nothing, and it decides nothing about which ranks share a host beyond what the launcher says.
 *
 *      RANK ─▶ SHOAL_JOB? shoal : torchrun       OMPI_COMM_WORLD_RANK ─▶ open-mpi       PMI_RANK ─▶ pmi
 *      SLURM_STEP_ID ─▶ slurm                    JOB_COMPLETION_INDEX ─▶ kubernetes     nothing ─▶ none
 *
 *  The first that applies wins, in this order. docs/bootstrap.md lists every variable. */
import { createHash } from 'node:crypto';
import { ShoalError } from '../base/errors.ts';
import type { Environment } from '../base/settings/settings.ts';

export type WorldSource = 'shoal' | 'torchrun' | 'open-mpi' | 'pmi' | 'slurm' | 'kubernetes' | 'none';

/** The place at which the ranks find the store. */
export type Meeting =
  /** A world of one, which has nobody to meet. */
  | { readonly kind: 'alone' }
  /** A store at an address. `hostedElsewhere`: a launcher serves there; otherwise rank 0 does. */
  | { readonly kind: 'address'; readonly host: string; readonly port: number; readonly hostedElsewhere: boolean }
  /** All ranks are on one host and have no secret: rank 0 serves on loopback, at `port` (0: any), and leaves address and
   *  a fresh secret in a file of this name in the user's private directory. */
  | { readonly kind: 'file'; readonly name: string; readonly port: number };

export interface WorldSpec {
  readonly source: WorldSource;
  readonly rank: number;
  readonly worldSize: number;
  /** The launcher's word about ranks on the same host; undefined when it says nothing. */
  readonly localRank: number | undefined;
  readonly localSize: number | undefined;
  readonly meeting: Meeting;
  /** Name of the job, the same on all its ranks: connections of another job are refused. */
  readonly world: string;
  /** Number of times that the launcher has restarted the ranks. */
  readonly generation: number;
  readonly secret: string | undefined;
}

/** `SHOAL_*` variables that are read here rather than in the registry of settings. */
export const launchVariables = ['SHOAL_JOB', 'SHOAL_JOB_RECORDS', 'SHOAL_JOIN', 'SHOAL_MASTER_PORT'] as const;

/** torchrun's default, used where a launcher gives an address and no port. */
export const defaultMasterPort = 29500;

/** A size of more than one makes no sense without its rank. */
const sizesWithoutRank = [
  { size: 'WORLD_SIZE', rank: 'RANK' },
  { size: 'OMPI_COMM_WORLD_SIZE', rank: 'OMPI_COMM_WORLD_RANK' },
  { size: 'PMI_SIZE', rank: 'PMI_RANK' },
] as const;

interface Position {
  readonly rank: number;
  readonly worldSize: number;
  readonly localRank?: number;
  readonly localSize?: number;
}

/** The world that `environment` describes.
 *  @throws ShoalError `config` naming the variables: what was found, what is missing or contradicts what. */
export function detectWorld(environment: Environment, options: { parentPid?: number } = {}): WorldSpec {
  const vars = new Variables(environment);
  if (vars.has('RANK')) return vars.has('SHOAL_JOB') ? fromShoal(vars) : fromTorchrun(vars);
  if (vars.has('OMPI_COMM_WORLD_RANK')) return fromOpenMpi(vars);
  if (vars.has('PMI_RANK') && !pmiFromSlurm(vars)) return fromPmi(vars, options.parentPid);
  if (vars.has('SLURM_STEP_ID') && vars.has('SLURM_PROCID')) return fromSlurm(vars);
  if (vars.has('JOB_COMPLETION_INDEX')) return fromKubernetes(vars);
  for (const { size, rank } of sizesWithoutRank) {
    if (vars.has(size) && vars.integer(size) > 1) throw vars.incomplete(rank);
  }
  return specOf(vars, 'none', { rank: 0, worldSize: 1, localRank: 0, localSize: 1 }, { kind: 'alone' }, 'alone');
}

function fromShoal(vars: Variables): WorldSpec {
  const position = torchPosition(vars);
  const address = { kind: 'address', host: vars.text('MASTER_ADDR'), port: masterPort(vars), hostedElsewhere: true } as const;
  return specOf(vars, 'shoal', position, address, vars.text('SHOAL_JOB'));
}

function fromTorchrun(vars: Variables): WorldSpec {
  const position = torchPosition(vars);
  // torchrun may be started by mpirun or srun, once per node; then its ranks rightly differ from theirs.
  if (!vars.has('TORCHELASTIC_RUN_ID')) checkAgreement(vars, position);
  const run = vars.optional('TORCHELASTIC_RUN_ID') ?? 'none';
  const agentStore = /^(true|1)$/i.test(vars.optional('TORCHELASTIC_USE_AGENT_STORE') ?? '');
  if (position.worldSize > 1 && agentStore && !vars.has('SHOAL_MASTER_PORT')) {
    // torchrun's agent listens on MASTER_PORT itself, with a store of another protocol.
    if (position.localSize !== position.worldSize) {
      const message =
        'torchrun serves its own store on MASTER_PORT; set SHOAL_MASTER_PORT to a port that is free on the host of MASTER_ADDR, the same on every node';
      throw new ShoalError('config', message);
    }
    const name = fileName('torchrun', run, vars.optional('MASTER_PORT') ?? '', String(generationOf(vars)));
    return specOf(vars, 'torchrun', position, { kind: 'file', name, port: 0 }, name);
  }
  return specOf(vars, 'torchrun', position, meetAtMaster(vars, position), `torchrun:${run}`);
}

function fromOpenMpi(vars: Variables): WorldSpec {
  const position = positionOf(
    vars,
    'OMPI_COMM_WORLD_RANK',
    'OMPI_COMM_WORLD_SIZE',
    'OMPI_COMM_WORLD_LOCAL_RANK',
    'OMPI_COMM_WORLD_LOCAL_SIZE',
  );
  const job = vars.optional('PMIX_NAMESPACE') ?? vars.optional('OMPI_MCA_ess_base_jobid');
  return meetAnywhere(vars, 'open-mpi', position, job, 'mpirun -x MASTER_ADDR=<host of rank 0> -x MASTER_PORT=<port> -x SHOAL_SECRET …');
}

function fromPmi(vars: Variables, parentPid: number | undefined): WorldSpec {
  const position = positionOf(vars, 'PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS');
  // Hydra names no job; its proxy is the parent of all ranks of a host.
  const job = parentPid === undefined ? undefined : `parent ${parentPid}`;
  return meetAnywhere(
    vars,
    'pmi',
    position,
    job,
    'mpiexec -genv MASTER_ADDR <host of rank 0> -genv MASTER_PORT <port> -genv SHOAL_SECRET <secret> …',
  );
}

function fromSlurm(vars: Variables): WorldSpec {
  const sizeName = vars.has('SLURM_STEP_NUM_TASKS') ? 'SLURM_STEP_NUM_TASKS' : 'SLURM_NTASKS';
  const position = slurmPosition(vars, sizeName);
  const job = `${vars.text('SLURM_JOB_ID')}.${vars.text('SLURM_STEP_ID')}`;
  if (vars.has('MASTER_ADDR') || position.worldSize === 1 || position.localSize === position.worldSize) {
    return meetAnywhere(vars, 'slurm', position, job, '');
  }
  const nodesName = vars.has('SLURM_STEP_NODELIST') ? 'SLURM_STEP_NODELIST' : 'SLURM_NODELIST';
  const host = firstSlurmNode(vars.text(nodesName), nodesName);
  const port = vars.has('MASTER_PORT') || vars.has('SHOAL_MASTER_PORT') ? masterPort(vars) : slurmPort(vars);
  return specOf(vars, 'slurm', position, { kind: 'address', host, port, hostedElsewhere: false }, `slurm:${job}`);
}

function fromKubernetes(vars: Variables): WorldSpec {
  const position = positionOf(vars, 'JOB_COMPLETION_INDEX', 'WORLD_SIZE');
  if (position.worldSize > 1 && !vars.has('MASTER_ADDR')) throw vars.incomplete('MASTER_ADDR');
  return specOf(vars, 'kubernetes', position, meetAtMaster(vars, position), `kubernetes:${vars.optional('MASTER_ADDR') ?? ''}`);
}

/** At MASTER_ADDR when it is given, else through a file when all ranks are on this host. */
function meetAnywhere(vars: Variables, source: WorldSource, position: Position, job: string | undefined, advice: string): WorldSpec {
  if (vars.has('MASTER_ADDR')) return specOf(vars, source, position, meetAtMaster(vars, position), `${source}:${job ?? ''}`);
  if (position.worldSize === 1) return specOf(vars, source, position, { kind: 'alone' }, `${source}:${job ?? ''}`);
  if (position.localSize !== position.worldSize) {
    const message = `${source}: rank ${position.rank} of ${position.worldSize}, ${position.localSize ?? 'an unknown number'} of them on this host, and MASTER_ADDR is not set; a job over several hosts needs it: ${advice}`;
    throw new ShoalError('config', message);
  }
  if (job === undefined) {
    throw new ShoalError('config', `${source}: found no name of the job to meet under; set MASTER_ADDR=127.0.0.1 and MASTER_PORT=<port>`);
  }
  const name = fileName(source, job);
  return specOf(vars, source, position, { kind: 'file', name, port: 0 }, name);
}

function meetAtMaster(vars: Variables, position: Position): Meeting {
  if (position.worldSize === 1 && !vars.has('MASTER_ADDR')) return { kind: 'alone' };
  const host = vars.text('MASTER_ADDR');
  const port = masterPort(vars);
  if (position.worldSize === 1) return { kind: 'alone' };
  if (isLoopback(host) && !vars.has('SHOAL_SECRET')) return { kind: 'file', name: `port-${port}`, port };
  return { kind: 'address', host, port, hostedElsewhere: false };
}

function specOf(vars: Variables, source: WorldSource, position: Position, meeting: Meeting, world: string): WorldSpec {
  const { rank, worldSize, localRank, localSize } = position;
  return {
    source,
    rank,
    worldSize,
    localRank,
    localSize,
    meeting,
    world,
    generation: generationOf(vars),
    secret: vars.optional('SHOAL_SECRET'),
  };
}

function torchPosition(vars: Variables): Position {
  return positionOf(vars, 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE');
}

function positionOf(vars: Variables, rankName: string, sizeName: string, localRankName?: string, localSizeName?: string): Position {
  const rank = vars.integer(rankName);
  const worldSize = vars.integer(sizeName);
  vars.check(worldSize >= 1, sizeName, 'must be at least 1');
  vars.check(rank < worldSize, rankName, `must be below ${sizeName}=${worldSize}`);
  const localRank = localRankName !== undefined && vars.has(localRankName) ? vars.integer(localRankName) : undefined;
  const localSize = localSizeName !== undefined && vars.has(localSizeName) ? vars.integer(localSizeName) : undefined;
  if (localSize !== undefined) {
    vars.check(localSize >= 1 && localSize <= worldSize, localSizeName!, `must be from 1 to ${sizeName}=${worldSize}`);
    if (localRank !== undefined) vars.check(localRank < localSize, localRankName!, `must be below ${localSizeName}=${localSize}`);
  }
  return { rank, worldSize, localRank, localSize };
}

function slurmPosition(vars: Variables, sizeName: string): Position {
  const position = positionOf(vars, 'SLURM_PROCID', sizeName, 'SLURM_LOCALID');
  const tasks = vars.optional('SLURM_STEP_TASKS_PER_NODE') ?? vars.optional('SLURM_TASKS_PER_NODE');
  const node = vars.has('SLURM_NODEID') ? vars.integer('SLURM_NODEID') : 0;
  const localSize = tasks === undefined ? undefined : expandTasksPerNode(tasks)[node];
  return { ...position, localSize };
}

/** Slurm's run-length list: `2(x3),1` is 2, 2, 2, 1. Empty when malformed. */
export function expandTasksPerNode(list: string): number[] {
  const counts: number[] = [];
  for (const item of list.split(',')) {
    const match = /^(\d{1,6})(?:\(x(\d{1,6})\))?$/.exec(item);
    if (match === null) return [];
    for (let i = Number(match[2] ?? 1); i > 0; i--) counts.push(Number(match[1]));
  }
  return counts;
}

/** First host of a Slurm node list: `gpu[03-05,9],login1` gives `gpu03`; several brackets per name are allowed. */
export function firstSlurmNode(list: string, variable = 'SLURM_STEP_NODELIST'): string {
  const first = /^(?:[^,[\]]|\[[^[\]]*\])+/.exec(list)?.[0] ?? '';
  const host = first.replace(/\[(\d+)[^[\]]*\]/g, '$1');
  if (host === '' || /[[\]]/.test(host)) throw new ShoalError('config', `${variable}='${list}' is not a Slurm node list; set MASTER_ADDR`);
  return host;
}

/** The same on all ranks of a step and different for neighbouring steps; outside the range that systems hand out themselves. */
function slurmPort(vars: Variables): number {
  return 20_000 + ((vars.integer('SLURM_JOB_ID') * 31 + vars.integer('SLURM_STEP_ID')) % 10_000);
}

function pmiFromSlurm(vars: Variables): boolean {
  return vars.has('SLURM_STEP_ID') && vars.optional('SLURM_PROCID') === vars.optional('PMI_RANK');
}

/** RANK exported by hand into a job of another launcher gives every process the same rank. */
function checkAgreement(vars: Variables, position: Position): void {
  const others = [
    ['OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE'],
    ['PMI_RANK', 'PMI_SIZE'],
  ] as const;
  for (const [rankName, sizeName] of others) {
    if (!vars.has(rankName) || !vars.has(sizeName)) continue;
    const rank = vars.integer(rankName);
    const size = vars.integer(sizeName);
    if (rank === position.rank && size === position.worldSize) continue;
    const message = `RANK=${position.rank} WORLD_SIZE=${position.worldSize} contradict ${rankName}=${rank} ${sizeName}=${size}; unset the pair that does not belong to this job`;
    throw new ShoalError('config', message);
  }
}

function generationOf(vars: Variables): number {
  return vars.has('TORCHELASTIC_RESTART_COUNT') ? vars.integer('TORCHELASTIC_RESTART_COUNT') : 0;
}

function masterPort(vars: Variables): number {
  const name = vars.has('SHOAL_MASTER_PORT') ? 'SHOAL_MASTER_PORT' : 'MASTER_PORT';
  if (name === 'MASTER_PORT' && !vars.has(name) && vars.has('JOB_COMPLETION_INDEX')) return defaultMasterPort;
  const port = vars.integer(name);
  vars.check(port >= 1 && port <= 65_535, name, 'must be a port, 1 to 65535');
  return port;
}

/** True for addresses that mean this host and nothing else. */
export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Job names hold any characters; file names are a digest of them. */
function fileName(...parts: string[]): string {
  return `${parts[0]}-${createHash('sha256').update(JSON.stringify(parts)).digest('hex').slice(0, 24)}`;
}

class Variables {
  readonly #environment: Environment;

  constructor(environment: Environment) {
    this.#environment = environment;
  }

  /** An empty variable counts as unset. */
  has(name: string): boolean {
    return this.optional(name) !== undefined;
  }

  optional(name: string): string | undefined {
    const value = this.#environment[name]?.trim();
    return value === '' ? undefined : value;
  }

  text(name: string): string {
    const value = this.optional(name);
    if (value === undefined) throw this.incomplete(name);
    return value;
  }

  integer(name: string): number {
    const value = this.text(name);
    if (!/^\d{1,15}$/.test(value)) throw new ShoalError('config', `${name}='${value}' is not a whole number`);
    return Number(value);
  }

  check(condition: boolean, name: string, rule: string): void {
    if (!condition) throw new ShoalError('config', `${name}=${this.optional(name)} ${rule}`);
  }

  incomplete(missing: string): ShoalError {
    const found = Object.keys(this.#environment)
      .filter((name) => relevant.test(name) && this.has(name))
      .sort()
      .slice(0, 16)
      .map((name) => `${name}=${this.optional(name)}`);
    const message = `${missing} is not set, but ${found.join(', ') || 'nothing else'} ${found.length > 1 ? 'are' : 'is'}; start the ranks with \`shoal run\`, or set all of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT`;
    return new ShoalError('config', message);
  }
}

const relevant =
  /^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|SHOAL_JOB|SHOAL_MASTER_PORT|OMPI_COMM_WORLD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE)|PMI_(RANK|SIZE)|SLURM_(JOB_ID|PROCID|NTASKS|LOCALID|STEP_ID|STEP_NUM_TASKS|STEP_NODELIST|NODELIST)|JOB_COMPLETION_INDEX)$/;
