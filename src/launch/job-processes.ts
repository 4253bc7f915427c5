/** The processes that a job has on this node: their commands, variables and prefixes. It must not know how they are started. */
import type { Environment } from '../base/settings/settings.ts';
import type { Place } from './elastic-ranks.ts';
import type { NodeAgreement } from './node-agreement.ts';
import { rankEnvironment, withoutOuterJob, type JobPlace } from './rank-environment.ts';
import { serverPlaces, serverVariables, type ServerOptions } from './server-specs.ts';
import type { ProcessSpec } from './supervisor.ts';

export interface JobProcessOptions {
  /** Program and arguments of every rank; see `scriptCommand`. */
  readonly command: readonly string[];
  /** The launcher's own environment; the ranks inherit it, without what belongs to the job of a rank that has started the launcher. */
  readonly environment: Environment;
  /** Further variables that the ranks are given. Default: none. */
  readonly variables?: Environment | undefined;
  /** Ranks on this node. */
  readonly localSize: number;
  /** Failures after which all ranks are started again. Default 0. */
  readonly maxRestarts?: number;
  /** The last ranks, which are started again alone, each so many times. Default: none. */
  readonly restartedRanks?: { readonly count: number; readonly restarts: number };
  /** Rank 0 reads our standard input, which must not be a terminal: ranks are not in its foreground. Default false. */
  readonly stdinToRank0?: boolean;
  /** Colours the prefixes. Default `never`. */
  readonly colour?: 'always' | 'never';
  /** Parameter servers beside the ranks. Default: none. */
  readonly servers?: ServerOptions;
}

const colours = [36, 33, 32, 35, 34, 96, 93, 92, 95, 94] as const;

export class JobProcesses {
  readonly #options: JobProcessOptions;
  readonly #place: JobPlace;
  readonly #agreement: NodeAgreement;
  readonly #generation: number;

  /** @param agreement with all nodes. @param generation number of times that all ranks were started again. */
  constructor(options: JobProcessOptions, place: JobPlace, agreement: NodeAgreement, generation: number) {
    this.#options = options;
    this.#place = place;
    this.#agreement = agreement;
    this.#generation = generation;
  }

  /** Processes that are started first. @param late places of ranks that are to join, where the world has begun already. */
  first(late: readonly Place[] = []): ProcessSpec[] {
    const { localSize } = this.#options;
    if (late.length > 0) return late.map((place) => this.newcomer(place));
    return [...Array.from({ length: localSize }, (_, localRank) => this.#rank(localRank)), ...this.#servers()];
  }

  /** One that joins the world later. */
  newcomer({ rank, localRank }: Place): ProcessSpec {
    const { command, localSize } = this.#options;
    const environment = { ...this.#environmentOf({ rank, localRank, localSize }), ...this.#workerVariables, SHOAL_JOIN: '1' };
    return { kind: 'rank', name: `rank ${rank}`, rank, localRank, command, environment };
  }

  /** The text before each line of a process's output. */
  prefix({ kind, name, rank = 0 }: ProcessSpec): string {
    const width = String(this.#agreement.worldSize - 1).length;
    const text = kind === 'rank' ? `[rank ${String(rank).padStart(width)}]` : `[${name}]`;
    return this.#options.colour === 'always' ? `\u001b[${colours[rank % colours.length]}m${text}\u001b[0m ` : `${text} `;
  }

  #rank(localRank: number): ProcessSpec {
    const { command, localSize, stdinToRank0 = false, restartedRanks: last } = this.#options;
    const { firstRank, worldSize } = this.#agreement;
    const rank = firstRank + localRank;
    const environment = { ...this.#environmentOf({ rank, localRank, localSize }), ...this.#workerVariables };
    const restarts = last !== undefined && rank >= worldSize - last.count ? last.restarts : 0;
    const place = { rank, localRank, restarts, command, environment };
    return { kind: 'rank', name: `rank ${rank}`, ...place, readsStdin: rank === 0 && stdinToRank0 };
  }

  get #workerVariables(): Record<string, string> {
    const { servers } = this.#options;
    return servers === undefined ? {} : serverVariables(servers, this.#agreement.worldSize);
  }

  #servers(): ProcessSpec[] {
    const { servers } = this.#options;
    if (servers === undefined) return [];
    return serverPlaces(servers, this.#place.node, this.#place.nodes).map(({ role, index, restarts, substitute }) => {
      const place = { rank: 0, localRank: 0, localSize: 1 };
      const more = { ...serverVariables(servers, this.#agreement.worldSize), SHOAL_ROLE: role, SHOAL_SERVER: String(index) };
      const environment = { ...this.#environmentOf(place), ...more };
      return { kind: 'server', name: `${role} ${index}`, command: servers.command, environment, restarts, seat: index, substitute };
    });
  }

  #environmentOf(place: { rank: number; localRank: number; localSize: number }): Record<string, string | undefined> {
    const { environment, variables, maxRestarts = 0 } = this.#options;
    const { worldSize, masterPort } = this.#agreement;
    // A rank that is alone may be joined.
    const grows = this.#place.nodesMax === undefined ? {} : { SHOAL_GROWS: '1' };
    const inherited = { ...withoutOuterJob(environment), ...variables, ...grows };
    return rankEnvironment(inherited, { ...this.#place, ...place, generation: this.#generation, worldSize, masterPort, maxRestarts });
  }
}
