/** How the ranks of a group agree on an express while the group opens: either all of them have all its sockets, or there is none.
 *
 *      group-open of all: each says where it can be reached, or that it cannot
 *        │ someone cannot ─▶ no express
 *        └─▶ sockets between each two ranks (express-links.ts) ─▶ express-ready of all ─▶ express, or none
 *
 *  With it goes what the kernel knows of the sockets' round trips; all ranks take the median of what all said.
 *
 *  It must not know what travels on the sockets. */
import type { SocketSource, TakeDescriptor } from '../fabric/fabric.ts';
import type { NativeWire } from '../memory/native-wire.ts';
import { ExpressLinks } from './express-links.ts';
import type { GroupSpec } from './group-engine.ts';
import type { ControlMessage } from './wire.ts';

/** Every rank sends to every other one: beyond, other algorithms are faster. */
const ranksMax = 16;

export interface ExpressOpeningOptions {
  readonly group: GroupSpec;
  /** Name of the world. */
  readonly world: string;
  /** What this rank needs; undefined when it does without an express. */
  readonly means: { readonly native: NativeWire; readonly sockets: SocketSource } | undefined;
  readonly connectTimeoutMs: number;
  readonly tellOthers: (message: ControlMessage) => void;
  readonly onProblem: (thrown: unknown) => void;
}

/** What all ranks have. */
export interface AgreedExpress {
  /** This rank's sockets to the other ranks. */
  readonly descriptors: readonly number[];
  /** From host to host, seconds; the same on all ranks. Undefined when nobody's kernel knew. */
  readonly latency: number | undefined;
}

export class ExpressOpening {
  /** Where this rank can be reached; empty: it cannot. */
  readonly candidates: readonly string[];
  readonly #options: ExpressOpeningOptions;
  readonly #candidatesOf: (readonly string[])[];
  readonly #ready: (boolean | undefined)[];
  readonly #roundTripsUs: number[] = [];
  readonly #links: ExpressLinks | undefined;
  #descriptors: number[] | undefined;
  #onAgreed: ((agreed: AgreedExpress | undefined) => void) | undefined;

  constructor(options: ExpressOpeningOptions) {
    this.#options = options;
    const { group, world, means, connectTimeoutMs } = options;
    this.candidates = means && group.globalRanks.length <= ranksMax ? means.sockets.candidates : [];
    if (means && this.candidates.length > 0) this.#links = new ExpressLinks({ group, world, ...means, connectTimeoutMs });
    this.#candidatesOf = group.globalRanks.map((_, rank) => (rank === group.rank ? this.candidates : []));
    this.#ready = group.globalRanks.map(() => undefined);
  }

  /** Where another rank can be reached. */
  note(rank: number, candidates: readonly string[]): void {
    this.#candidatesOf[rank] = candidates;
  }

  onReady(rank: number, { ok, roundTripUs }: { readonly ok: boolean; readonly roundTripUs?: number }): void {
    this.#ready[rank] = ok;
    if (roundTripUs !== undefined) this.#roundTripsUs.push(roundTripUs);
    this.#settle();
  }

  onSocket(rank: number, accept: (take: TakeDescriptor) => number): void {
    this.#links?.onSocket(rank, accept);
  }

  /** To be called when all ranks have been noted. Tells once; undefined: no express. */
  agree(onAgreed: (agreed: AgreedExpress | undefined) => void): void {
    const links = this.#links;
    if (links === undefined || this.#candidatesOf.some(({ length }) => length === 0)) {
      onAgreed(undefined);
      return;
    }
    this.#onAgreed = onAgreed;
    void this.#connect(links);
  }

  /** The group is gone before all agreed. */
  abandon(): void {
    if (this.#onAgreed === undefined) return;
    this.#onAgreed = undefined;
    this.#links?.close();
  }

  async #connect(links: ExpressLinks): Promise<void> {
    try {
      this.#descriptors = await links.connect(this.#candidatesOf);
    } catch (thrown) {
      this.#options.onProblem(thrown);
    }
    this.#tell({ ok: this.#descriptors !== undefined });
  }

  #tell({ ok }: { readonly ok: boolean }): void {
    if (this.#onAgreed === undefined) return;
    const { group, tellOthers } = this.#options;
    const said = { ok, roundTripUs: this.#roundTripUs() };
    tellOthers({ type: 'express-ready', group: group.id, ...said });
    this.onReady(group.rank, said);
  }

  /** Of the sockets to other hosts. */
  #roundTripUs(): number | undefined {
    const { group, means } = this.#options;
    const local = group.topology.hosts.find((ranks) => ranks.includes(group.rank)) ?? [];
    const others = group.globalRanks.map((_, rank) => rank).filter((rank) => rank !== group.rank);
    const roundTrips = (this.#descriptors ?? []).map((fd, k) =>
      local.includes(others[k]) ? undefined : means?.native.socketRoundTrip(fd),
    );
    return median(roundTrips.filter((each) => each !== undefined));
  }

  #settle(): void {
    const onAgreed = this.#onAgreed;
    if (onAgreed === undefined || this.#ready.includes(undefined)) return;
    this.#onAgreed = undefined;
    const all = this.#ready.every((ok) => ok === true);
    if (!all) this.#links?.close();
    const roundTripUs = median(this.#roundTripsUs);
    const descriptors = this.#descriptors;
    onAgreed(all && descriptors ? { descriptors, latency: roundTripUs === undefined ? undefined : roundTripUs / 2e6 } : undefined);
  }
}

function median(values: readonly number[]): number | undefined {
  return values.toSorted((a, b) => a - b).at(values.length >> 1);
}
