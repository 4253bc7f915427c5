/** Rounds of one worker group at one server. A client's n-th push of a slot belongs to the slot's round n; a round is settled
 *  when every worker of the group is in it, then all its gradients are summed, in the order of the workers, not of
 *  arrival, and applied. All sources are held until the round is settled.
 *
 *    slot 7     settled 4 │ round 5: client 0 ✓  client 2 ✗ │ round 6: client 0 ✓ (early)
 *
 *  Where workers come and go, a round is settled without those that it spares: clients that are absent, and clients that have come later
 *  and enter at a later round.
 *
 *  Exactly once: the last round of every client and slot is known. `Request` is the request of a contribution. */
import { getOrMake, pushTo } from '../../../base/collections/lists.ts';
import type { ShoalError } from '../../../base/errors.ts';
import type { Address } from '../../../messaging/address.ts';

/** A client's gift to a stretch of slots, in one round. */
export interface Contribution<Request> {
  readonly request: Request;
  /** Index of the run in the request. */
  readonly run: number;
  /** Bytes of the slab at which `source` and `target` begin. */
  readonly base: number;
  readonly source: Uint8Array;
  /** The place where the new value goes. */
  readonly target: Uint8Array | undefined;
  /** The rows that `source` of a row-sparse push has, counted within the slot. */
  readonly rows: Uint32Array | undefined;
  /** The value that the source is a part of holds NaN or infinity. */
  readonly nonFinite: boolean;
}

/** A client in its worker group. */
export interface Member<Request> {
  readonly address: Address;
  readonly firstWorker: number;
  readonly workers: number;
  /** The last round that came, by slot. */
  readonly received: number[];
  /** Its contribution to the round after the settled one, by slot. */
  readonly held: (Contribution<Request> | undefined)[];
  /** Its contributions to the rounds after that one, in their order, by slot. Rounds before the one at which it enters have none. */
  readonly early: Map<number, (Contribution<Request> | undefined)[]>;
  /** The last round that was given up without it, by slot. */
  readonly missed: Map<number, number>;
  /** It will push nothing more. */
  gone: ShoalError | undefined;
  /** True when its contributions may have changed since: it gave up in the middle. */
  broken: boolean;
  /** Where workers come and go: it has left or is lost, or has not entered the rounds yet. No round waits for it. */
  absent: boolean;
}

/** A request that waits for rounds which its client has pushed already, or for none. */
export interface Waiter<Request> {
  readonly request: Request;
  readonly run: number;
  readonly from: number;
  readonly to: number;
  readonly round: number;
  /** The first slot that is not settled so far. */
  next: number;
}

export class GroupRounds<Request> {
  readonly group: number;
  /** Workers whose pushes make a round. */
  readonly workers: number;
  /** Ordered by their workers: the order of every sum. */
  readonly members: Member<Request>[] = [];
  /** The last settled round, by slot. */
  readonly settled: number[] = [];
  /** Workers that are in the next round, by slot. */
  readonly weight: number[] = [];
  /** Workers that the next round does not wait for, by slot. */
  readonly spared: number[] = [];
  /** Some may be. */
  #spares = false;
  /** The reason why a round was refused, by slot. Only the last one is remembered. */
  readonly refused = new Map<number, { readonly round: number; readonly error: ShoalError }>();
  readonly #waiters = new Map<number, Waiter<Request>[]>();

  constructor(group: number, workers: number) {
    this.group = group;
    this.workers = workers;
  }

  grow(slots: number): void {
    while (this.settled.length < slots) {
      this.settled.push(0);
      this.weight.push(0);
      this.spared.push(0);
    }
    for (const member of this.members) growMember(member, this.settled);
    if (this.#spares) this.recount();
  }

  /** Takes the place of clients that had its workers. */
  replace(firstWorker: number, workers: number): void {
    const first = this.members.findIndex((member) => member.firstWorker === firstWorker && member.workers === workers);
    if (first >= 0) this.members.splice(first, 1);
  }

  /** @returns undefined when its workers are not all of this group, or are another's already. */
  join(address: Address, firstWorker: number, workers: number): Member<Request> | undefined {
    const known = this.members.find((member) => member.address === address);
    if (known !== undefined) return known.firstWorker === firstWorker && known.workers === workers ? known : undefined;
    const first = this.group * this.workers;
    if (workers < 1 || firstWorker < first || firstWorker + workers > first + this.workers) return undefined;
    const overlaps = this.members.some((m) => m.firstWorker < firstWorker + workers && firstWorker < m.firstWorker + m.workers);
    if (overlaps) return undefined;
    const member: Member<Request> = {
      address,
      firstWorker,
      workers,
      received: [],
      held: [],
      early: new Map(),
      missed: new Map(),
      gone: undefined,
      broken: false,
      absent: false,
    };
    growMember(member, this.settled);
    this.members.push(member);
    this.members.sort((a, b) => a.firstWorker - b.firstWorker);
    return member;
  }

  /** Takes the contribution into a round that has not come before. */
  contribute(member: Member<Request>, slot: number, round: number, contribution: Contribution<Request>): void {
    member.received[slot] = round;
    if (round === this.settled[slot] + 1) {
      member.held[slot] = contribution;
      this.weight[slot] += member.workers;
      return;
    }
    getOrMake(member.early, slot, () => [])[round - this.settled[slot] - 2] = contribution;
  }

  /** A contribution that came again takes the place of the one that came before. @returns that one. */
  contributeAgain(
    member: Member<Request>,
    slot: number,
    round: number,
    contribution: Contribution<Request>,
  ): Contribution<Request> | undefined {
    const next = this.settled[slot] + 1;
    if (round === next) {
      const { [slot]: before } = member.held;
      member.held[slot] = contribution;
      return before;
    }
    const early = member.early.get(slot);
    return early?.splice(round - next - 1, 1, contribution)[0];
  }

  /** The next stretch of slots, from `from` on, whose round is complete and can be summed at once; `to` when there is none. */
  nextComplete(from: number, to: number): number {
    let slot = from;
    while (slot < to && !this.#isComplete(slot)) slot++;
    return slot;
  }

  /** A round that nobody is in is complete when it is before the one at which all that there are enter. */
  #isComplete(slot: number): boolean {
    const { [slot]: weight } = this.weight;
    if (weight + this.spared[slot] !== this.workers) return false;
    return weight > 0 || this.members.some(({ absent, received }) => !absent && received[slot] > this.settled[slot]);
  }

  /** Counts anew whom the next rounds wait for: members have come, entered or gone. */
  recount(): void {
    this.#spares = true;
    for (let slot = 0; slot < this.settled.length; slot++) {
      this.weight[slot] = 0;
      for (const { held, workers } of this.members) if (held[slot] !== undefined) this.weight[slot] += workers;
      this.#countSpared(slot);
    }
  }

  #countSpared(slot: number): void {
    this.spared[slot] = 0;
    for (const { absent, held, received, workers } of this.members)
      if (held[slot] === undefined && (absent || received[slot] > this.settled[slot])) this.spared[slot] += workers;
  }

  /** Where the stretch ends that begins at the complete slot `from`: same slab, same contributions, same steps. */
  stretchEnd(from: number, to: number, slab: readonly number[], steps: readonly number[]): number {
    let slot = from + 1;
    while (slot < to && this.#isComplete(slot) && slab[slot] === slab[from] && steps[slot] === steps[from]) {
      if (!this.#areHeldAlike(slot, from)) break;
      slot++;
    }
    return slot;
  }

  #areHeldAlike(one: number, other: number): boolean {
    for (const { held } of this.members) if (held[one] !== held[other]) return false;
    return true;
  }

  /** Moves the stretch on to its next round. @returns true when later contributions were there already. */
  settle(from: number, to: number): boolean {
    let more = false;
    for (let slot = from; slot < to; slot++) {
      this.settled[slot]++;
      this.weight[slot] = 0;
    }
    for (const member of this.members) {
      for (let slot = from; slot < to; slot++) {
        const settled = this.settled[slot];
        if (member.held[slot] === undefined && member.received[slot] < settled && !member.absent) {
          member.received[slot] = settled;
          member.missed.set(slot, settled);
        }
        member.held[slot] = undefined;
      }
      if (member.early.size === 0) continue;
      for (let slot = from; slot < to; slot++) {
        const early = member.early.get(slot);
        if (early === undefined) continue;
        member.held[slot] = early.shift();
        if (early.length === 0) member.early.delete(slot);
        if (member.held[slot] !== undefined) this.weight[slot] += member.workers;
        more = true;
      }
    }
    if (this.#spares) for (let slot = from; slot < to; slot++) this.#countSpared(slot);
    return more || this.#spares;
  }

  /** Registers the waiter at the first slot that keeps it waiting. @returns false when none does. */
  wait(waiter: Waiter<Request>): boolean {
    while (waiter.next < waiter.to && this.settled[waiter.next] >= waiter.round) waiter.next++;
    if (waiter.next === waiter.to) return false;
    pushTo(this.#waiters, waiter.next, waiter);
    return true;
  }

  /** Waiters that have waited for a slot of the stretch; they may wait for others. */
  takeWaiters(from: number, to: number): Waiter<Request>[] {
    const taken: Waiter<Request>[] = [];
    if (this.#waiters.size === 0) return taken;
    for (let slot = from; slot < to; slot++) {
      const waiters = this.#waiters.get(slot);
      if (waiters === undefined) continue;
      this.#waiters.delete(slot);
      taken.push(...waiters);
    }
    return taken;
  }

  /** Drops waiters of requests that nobody waits for any more. */
  dropWaiters(request: (request: Request) => boolean): void {
    for (const [slot, waiters] of this.#waiters) {
      const kept = waiters.filter((waiter) => !request(waiter.request));
      if (kept.length > 0) this.#waiters.set(slot, kept);
      else this.#waiters.delete(slot);
    }
  }

  /** Members without which round `round` of the slot is not complete, and workers that never came. */
  missing(slot: number, round: number): { members: Member<Request>[]; strangers: number[] } {
    const members = this.members.filter((member) => member.received[slot] < round && !member.absent);
    const strangers: number[] = [];
    for (let worker = this.group * this.workers; worker < (this.group + 1) * this.workers; worker++) {
      if (!this.members.some((m) => worker >= m.firstWorker && worker < m.firstWorker + m.workers)) strangers.push(worker);
    }
    return { members, strangers };
  }
}

function growMember<Request>(member: Member<Request>, settled: readonly number[]): void {
  for (let slot = member.received.length; slot < settled.length; slot++) {
    member.received.push(settled[slot]);
    member.held.push(undefined);
  }
}

/** The numbers of a process's workers. */
export function workersOf({ firstWorker, workers }: Pick<Member<unknown>, 'firstWorker' | 'workers'>): number[] {
  return Array.from({ length: workers }, (_, each) => firstWorker + each);
}

/** `worker 3`, `workers 4 to 7`. */
export function describeWorkers({ firstWorker, workers }: Pick<Member<unknown>, 'firstWorker' | 'workers'>): string {
  return workers === 1 ? `worker ${firstWorker}` : `workers ${firstWorker} to ${firstWorker + workers - 1}`;
}
