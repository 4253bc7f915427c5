/** The steps of all ranks as numbers: a large world has millions. */
import { assert } from '../../base/assert.ts';
import type { Location, Step } from '../../plan/ir.ts';
import { hostOfRanks, type Topology } from '../../plan/topology.ts';
import type { SimulationModel } from './model.ts';

/** Kinds of steps, and their other three numbers:
 *  - `send`: a rank, its signal, and bytes; `store`: the same within a host, with the seconds that it takes.
 *  - `work`: copies and reductions; the last number is the seconds that they take.
 *  - `wait`: the own rank, its signal, and how often that has to have been raised. */
export const stepKinds = { send: 0, store: 1, work: 2, wait: 3, flush: 4 } as const;

/** Most channels of a rank. */
export const channelsMax = 64;
const noSteps: number[] = [];

export class StepLog {
  readonly #model: SimulationModel;
  readonly #elementBytes: number;
  readonly #hostOf: readonly number[];
  /** Four numbers for each step, by rank and channel: the place is `channelsMax` times the rank, and the channel. */
  readonly steps: number[][];
  /** Number of channels of each rank. */
  readonly channels: number[];

  /** @param ranks number of those that have programs. */
  constructor(topology: Topology, ranks: number, model: SimulationModel, elementBytes: number) {
    this.#model = model;
    this.#elementBytes = elementBytes;
    this.#hostOf = hostOfRanks(topology);
    this.steps = Array.from({ length: ranks * channelsMax }, () => noSteps);
    this.channels = Array.from({ length: ranks }, () => 1);
  }

  add(rank: number, channel: number, step: Step): void {
    const { hostByte, selfByte, reduceByte } = this.#model;
    const [bytes, hostOf] = [this.#elementBytes, this.#hostOf];
    assert(channel < channelsMax, () => `channel ${channel} is one of the first ${channelsMax}`);
    const place = rank * channelsMax + channel;
    const own = this.steps[place] === noSteps ? (this.steps[place] = []) : this.steps[place];
    this.channels[rank] = Math.max(this.channels[rank], channel + 1);
    // Mailboxes of other hosts have come to this one, so they are not remote.
    const isRemote = ({ rank: other }: Location): boolean => other !== undefined && other !== rank && hostOf[other] === hostOf[rank];
    switch (step.kind) {
      case 'put':
      case 'signal': {
        const amount = step.kind === 'put' ? step.source.count * bytes : 0;
        const to = step.peer % this.channels.length;
        if (hostOf[step.peer] === hostOf[rank]) own.push(stepKinds.store, to, step.signal, amount * hostByte);
        else own.push(stepKinds.send, to, step.signal, amount);
        return;
      }
      case 'copy': {
        const crosses = isRemote(step.source) || isRemote(step.target);
        own.push(stepKinds.work, rank, 0, step.source.count * bytes * (crosses ? hostByte : selfByte));
        return;
      }
      case 'reduce': {
        const remote = [...step.sources, ...step.targets].filter(isRemote).length;
        const each = step.targets[0].count * bytes;
        own.push(stepKinds.work, rank, 0, each * (step.sources.length * reduceByte + remote * hostByte));
        return;
      }
      case 'wait':
        own.push(stepKinds.wait, rank, step.signal, step.value);
        return;
      case 'flush':
        own.push(stepKinds.flush, rank, 0, 0);
    }
  }
}
