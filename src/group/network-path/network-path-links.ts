/** The sockets of a group's network path: one between each two ranks, opened while the group is. Either all ranks have all of theirs
 *  or there is no network path.
 *
 *      group-open of all: each says where it can be reached, or that it cannot ─▶ the lower rank dials ─▶ network-path-ready of all
 *
 *  It must not know the messages on them. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import type { SocketSource, TakeDescriptor } from '../../fabric/fabric.ts';
import type { NativeWire } from '../../memory/native-wire.ts';
import type { GroupSpec } from '../shared/call/group-spec.ts';

export interface NetworkPathLinksOptions {
  readonly group: GroupSpec;
  /** Name of the world. */
  readonly world: string;
  readonly native: NativeWire;
  readonly sockets: SocketSource;
  readonly connectTimeoutMs: number;
}

interface Accepted {
  readonly resolve: () => void;
  readonly reject: (error: ShoalError) => void;
  readonly promise: Promise<void>;
}

export class NetworkPathLinks {
  readonly #options: NetworkPathLinksOptions;
  /** By group rank; none for this rank. */
  readonly #descriptors: (number | undefined)[];
  #closed = false;
  /** All sockets that others dial. */
  readonly #accepted: Accepted;

  constructor(options: NetworkPathLinksOptions) {
    this.#options = options;
    this.#descriptors = options.group.globalRanks.map(() => undefined);
    let settle: Omit<Accepted, 'promise'> | undefined;
    const promise = new Promise<void>((resolve, reject) => {
      settle = { resolve, reject };
    });
    promise.catch(() => undefined);
    this.#accepted = { ...must(settle, () => 'promises are made at once'), promise };
  }

  /** To all ranks, by group rank, without this one's. @throws ShoalError what `connect` throws. */
  async connect(candidatesOf: readonly (readonly string[])[]): Promise<number[]> {
    const { group, world, sockets, connectTimeoutMs, native } = this.#options;
    const dialled = candidatesOf.map(async (candidates, rank) => {
      if (rank <= group.rank) return;
      const peer = { world, rank: group.globalRanks[rank] };
      const options = { peer, timeoutMs: connectTimeoutMs, tag: group.id };
      this.#keep(rank, await sockets.open({ provider: 'tcp', candidates }, options, (fd) => native.takeSocket(fd)));
    });
    await Promise.all([...dialled, this.#accepted.promise]);
    return this.#descriptors.filter((_, rank) => rank !== group.rank).map((fd) => must(fd, () => 'all are connected'));
  }

  /** A lower rank has dialled. @throws ShoalError when its socket cannot be taken; then no group of them comes about. */
  onSocket(rank: number, accept: (take: TakeDescriptor) => number): void {
    const { group, native } = this.#options;
    if (rank >= group.rank || this.#descriptors[rank] !== undefined) return;
    try {
      this.#keep(
        rank,
        accept((fd) => native.takeSocket(fd)),
      );
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      this.#accepted.reject(error);
      throw error;
    }
  }

  /** Closes what no wire took. */
  close(): void {
    this.#closed = true;
    for (const fd of this.#descriptors.splice(0)) if (fd !== undefined) this.#options.native.closeSocket(fd);
    this.#accepted.resolve();
  }

  #keep(rank: number, descriptor: number): void {
    if (this.#closed) {
      this.#options.native.closeSocket(descriptor);
      throw new ShoalError('closed', 'the group is gone');
    }
    this.#descriptors[rank] = descriptor;
    if (this.#descriptors.every((fd, each) => fd !== undefined || each >= this.#options.group.rank)) this.#accepted.resolve();
  }
}
