/** The rates of a group's network path, timed on its sockets before they are used, on all ranks at once, by polling threads as in later
 *  use.
 *
 *      tree      up a binomial tree to rank 0, and down again, without bytes and with some      few messages, one after another
 *      to all    rank r ─▶ all, wait for all                                                    many messages at once
 *
 *  The two kinds of rounds alternate, so that other load on the machines affects both equally; no rank can be a round ahead.
 *  Afterwards the sockets are empty. It works on memory of its own. */
import { sleep, type Clock } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { signalMaxOf } from '../../../call/group-spec.ts';
import { networkPathMemoryBytes, NetworkPathWire, type RankSet } from '../../../call/network-path-wire.ts';
import { ControlBlock, controlBlockBytes } from '../../../collectives/control-block.ts';
import { timedBytes, type NetworkPathTimings } from '../../../collectives/network-path.ts';
import type { NativeWire } from '../../../memory/native-wire.ts';
import type { RegionAllocator } from '../../../memory/region.ts';
import type { Place } from '../../../call/contract.ts';

/** The quickest of some batches of rounds counts: whatever else the machines do makes them longer. */
const batches = 20;
const rounds = 4;
const probeTurn = 0;
/** The time that a look for the messages of a round takes at most. */
const probeSpinNs = 20e6;

interface NetworkPathProbeOptions extends Place {
  readonly native: NativeWire;
  readonly allocator: RegionAllocator;
  readonly clock: Clock;
  /** Sockets to the other ranks; they stay open. */
  readonly descriptors: readonly number[];
  /** Ranks must keep up with each other so well. */
  readonly timeoutMs: number;
}

/** @throws ShoalError `timeout`, `peer-lost` when some rank does not take part. */
export async function timeNetworkPath(options: NetworkPathProbeOptions): Promise<NetworkPathTimings> {
  const { native, allocator, size, descriptors } = options;
  const region = allocator.create(networkPathMemoryBytes(native, size));
  const own = descriptors.map((fd) => native.takeSocket(fd));
  const probe = new NetworkPathProbe(options, new Uint8Array(region.buffer, 0, region.bytes), own);
  try {
    return await probe.run();
  } finally {
    probe.close();
    region.close();
  }
}

class NetworkPathProbe {
  readonly #options: NetworkPathProbeOptions;
  readonly #block: ControlBlock;
  readonly #wire: NetworkPathWire;
  readonly #endMs: number;
  /** Messages that each rank has to send to this one in the rounds so far. */
  readonly #expected: number[];

  constructor(options: NetworkPathProbeOptions, memory: Uint8Array, descriptors: readonly number[]) {
    this.#options = options;
    const { native, rank, size, clock, timeoutMs } = options;
    const shape = { slotCount: 2, signalMax: signalMaxOf(size) };
    this.#block = new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape);
    this.#wire = new NetworkPathWire({ native, rank, own: this.#block, firstSlot: 0, signalCount: shape.signalMax, memory, descriptors });
    this.#endMs = clock.now() + timeoutMs;
    this.#expected = Array.from({ length: size }, () => 0);
  }

  async run(): Promise<NetworkPathTimings> {
    const { rank, size } = this.#options;
    const others = Array.from({ length: size }, (_, each) => each).filter((each) => each !== rank);
    const timed = [treeRound(rank, size, 0), [{ to: others, from: others, bytes: 0 }], treeRound(rank, size, timedBytes)];
    const quickest = timed.map(() => Infinity);
    for (let batch = 0; batch < batches; batch++) {
      for (const [index, round] of timed.entries()) quickest[index] = Math.min(quickest[index], await this.#time(round));
    }
    const [tree, all, bytes] = quickest;
    return { tree, all, bytes };
  }

  close(): void {
    this.#wire.close();
  }

  /** Seconds of one of some rounds. */
  async #time(round: Round): Promise<number> {
    const { clock } = this.#options;
    const startMs = clock.now();
    for (let k = 0; k < rounds; k++) {
      for (const leg of round) {
        this.#send(leg);
        while (!this.#came(leg)) await this.#breathe(leg);
      }
    }
    return (clock.now() - startMs) / rounds / 1e3;
  }

  /** A rank's messages raise its own signal. */
  #send({ to, from, bytes }: Leg): void {
    const signal = this.#options.rank;
    for (const peer of to) {
      const put = { kind: 'put', peer, buffer: 'scratch', offset: 0, bytes, targetBuffer: 'scratch', targetOffset: bytes, signal } as const;
      this.#wire.put(probeTurn, bytes === 0 ? { kind: 'signal', peer, signal } : put);
    }
    for (const peer of from) this.#expected[peer]++;
  }

  #came({ from }: Leg): boolean {
    for (;;) {
      let missing: RankSet = 0;
      for (const peer of from) if (this.#block.raised(probeTurn, peer) < this.#expected[peer]) missing |= 1 << peer;
      if (missing === 0) return true;
      const status = this.#wire.progress(missing, probeSpinNs);
      if (status === 'ended') throw new ShoalError('peer-lost', 'a socket of the network path has ended while it was timed');
      if (status === 'not yet') return false;
    }
  }

  /** Lets this thread do what else it has to. */
  async #breathe({ from }: Leg): Promise<void> {
    const { clock, timeoutMs } = this.#options;
    if (clock.now() > this.#endMs)
      throw new ShoalError('timeout', `rank ${from.join(' or ')} took more than ${timeoutMs} ms to time the network path`, { timeoutMs });
    await sleep(clock, 0);
  }
}

/** Messages of so many bytes to some ranks, then from some. */
interface Leg {
  readonly to: readonly number[];
  readonly from: readonly number[];
  readonly bytes: number;
}

/** The legs of a rank in a round, in order. */
type Round = readonly Leg[];

/** Up to rank 0 and down again: the parent of a rank is the one without its lowest bit. */
function treeRound(rank: number, size: number, bytes: number): Round {
  const below = rank === 0 ? size : rank & -rank;
  const children: number[] = [];
  for (let bit = 1; bit < below && rank + bit < size; bit *= 2) children.push(rank + bit);
  const parent = rank === 0 ? [] : [rank & (rank - 1)];
  return [
    { to: [], from: children, bytes },
    { to: parent, from: parent, bytes },
    { to: children, from: [], bytes },
  ];
}
