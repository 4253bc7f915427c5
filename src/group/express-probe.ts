/** Times the sockets of an express before it is used, on all ranks at once, as they will be used: by threads that look all the time.
 *
 *      rounds to the next    rank r ─▶ r + 1, wait for r − 1
 *      rounds to all         rank r ─▶ all, wait for all
 *
 *  Afterwards nothing is left on the sockets. It works on memory of its own. It must not know what rates are good for. */
import { sleep, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import { ControlBlock, controlBlockBytes } from '../collectives/control-block.ts';
import { timedBytes, type ExpressTimings } from '../collectives/express-path.ts';
import type { NativeWire } from '../memory/native-wire.ts';
import type { RegionAllocator } from '../memory/region.ts';
import { expressMemoryBytes, ExpressWire, type RankSet } from './express-wire.ts';
import { signalMaxOf } from './wire.ts';

/** The quickest of some batches counts: whatever else the machines do makes them longer. */
const batches = 10;
const rounds = 8;
const turn = 0;
/** How long a round is looked for at a time. */
const spinNs = 20e6;

export interface ExpressProbeOptions {
  readonly native: NativeWire;
  readonly allocator: RegionAllocator;
  readonly clock: Clock;
  readonly rank: number;
  readonly size: number;
  /** To the other ranks; they stay open. */
  readonly descriptors: readonly number[];
  /** Ranks must keep up with each other so well. */
  readonly timeoutMs: number;
}

/** @throws ShoalError `timeout`, `peer-lost` when some rank does not take part. */
export async function timeExpress(options: ExpressProbeOptions): Promise<ExpressTimings> {
  const { native, allocator, size, descriptors } = options;
  const region = allocator.create(expressMemoryBytes(native, size));
  const own = descriptors.map((fd) => native.takeSocket(fd));
  const probe = new ExpressProbe(options, new Uint8Array(region.buffer, 0, region.bytes), own);
  try {
    return await probe.run();
  } finally {
    probe.close();
    region.close();
  }
}

class ExpressProbe {
  readonly #options: ExpressProbeOptions;
  readonly #block: ControlBlock;
  readonly #wire: ExpressWire;
  readonly #endMs: number;
  /** Messages that each rank has to send to this one in the rounds so far. */
  readonly #expected: number[];

  constructor(options: ExpressProbeOptions, memory: Uint8Array, descriptors: readonly number[]) {
    this.#options = options;
    const { native, rank, size, clock, timeoutMs } = options;
    const shape = { slotCount: 2, signalMax: signalMaxOf(size) };
    this.#block = new ControlBlock(new ArrayBuffer(controlBlockBytes(shape)), 0, shape);
    this.#wire = new ExpressWire({ native, rank, own: this.#block, firstSlot: 0, signalCount: shape.signalMax, memory, descriptors });
    this.#endMs = clock.now() + timeoutMs;
    this.#expected = Array.from({ length: size }, () => 0);
  }

  async run(): Promise<ExpressTimings> {
    const { rank, size } = this.#options;
    const next = { to: [(rank + 1) % size], from: [(rank + size - 1) % size] };
    const others = Array.from({ length: size }, (_, each) => each).filter((each) => each !== rank);
    return {
      next: await this.#quickest({ ...next, bytes: 0 }),
      all: await this.#quickest({ to: others, from: others, bytes: 0 }),
      bytes: await this.#quickest({ ...next, bytes: timedBytes }),
    };
  }

  close(): void {
    this.#wire.close();
  }

  async #quickest(round: Round): Promise<number> {
    const { clock } = this.#options;
    let quickestMs = Infinity;
    for (let batch = 0; batch < batches; batch++) {
      const startMs = clock.now();
      for (let k = 0; k < rounds; k++) {
        this.#send(round);
        while (!this.#came(round)) await this.#breathe(round);
      }
      quickestMs = Math.min(quickestMs, clock.now() - startMs);
    }
    return quickestMs / rounds / 1e3;
  }

  /** A rank's messages raise its own signal. */
  #send({ to, from, bytes }: Round): void {
    const signal = this.#options.rank;
    for (const peer of to) {
      const put = { kind: 'put', peer, buffer: 'scratch', offset: 0, bytes, targetBuffer: 'scratch', targetOffset: bytes, signal } as const;
      this.#wire.put(turn, bytes === 0 ? { kind: 'signal', peer, signal } : put);
    }
    for (const peer of from) this.#expected[peer]++;
  }

  #came({ from }: Round): boolean {
    for (;;) {
      let missing: RankSet = 0;
      for (const peer of from) if (this.#block.raised(turn, peer) < this.#expected[peer]) missing |= 1 << peer;
      if (missing === 0) return true;
      const status = this.#wire.progress(missing, { spinNs, sleepMs: 0 });
      if (status === 'ended') throw new ShoalError('peer-lost', 'a socket of the express has ended while it was timed');
      if (status === 'not yet') return false;
    }
  }

  /** Lets this thread do what else it has to. */
  async #breathe({ from }: Round): Promise<void> {
    const { clock, timeoutMs } = this.#options;
    if (clock.now() > this.#endMs)
      throw new ShoalError('timeout', `rank ${from.join(' or ')} took more than ${timeoutMs} ms to time the express`, { timeoutMs });
    await sleep(clock, 0);
  }
}

/** Messages of so many bytes to some ranks, and from some. */
interface Round {
  readonly to: readonly number[];
  readonly from: readonly number[];
  readonly bytes: number;
}
