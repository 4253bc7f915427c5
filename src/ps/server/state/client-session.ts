/** A server's record of one client, over all its connections, and the client's requests. */
import type { ShoalError } from '../../../base/errors.ts';
import type { Address } from '../../../messaging/address.ts';
import type { Msg } from '../../../messaging/msg.ts';
import type { GroupRounds, Member } from './rounds.ts';
import type { ValueMemory } from './slots.ts';
import type { Run, RunState } from '../../protocol/wire.ts';

/** Settled requests are dropped when there are at least so many. */
const unsettledLeast = 64;

/** The values of a push. */
export interface RunSource {
  readonly bytes: Uint8Array;
  readonly rows: Uint32Array | undefined;
}

/** A run of a request, with its memory. */
export interface ServedRun {
  readonly run: Run;
  /** The state that the answer says. */
  readonly state: RunState;
  /** Undefined for a run that pushes nothing, and once the request has been taken. */
  source: RunSource | undefined;
  /** The place where its values go. */
  readonly target: Uint8Array | undefined;
  /** A frame of its own in the answer: its values, or the memory of the slot that it is. */
  frame: Uint8Array | undefined;
  loan: ValueMemory | undefined;
}

/** A request that a server has taken and not answered yet. */
export interface ServerRequest {
  readonly session: ServerSession;
  readonly id: number;
  readonly epoch: number;
  /** The message as it came: a standby that joins late gets it again. */
  readonly msg: Msg;
  readonly runs: readonly ServedRun[];
  /** The frame of the answer that the values of several runs share. */
  readonly payload: Uint8Array | undefined;
  /** Slots that are not as the request wants them. */
  waiting: number;
  /** Slots of its pushes that are not settled. */
  unsettled: number;
  error: ShoalError | undefined;
  answered: boolean;
  /** Its message is being looked through. */
  taking: boolean;
}

export class ServerSession {
  readonly address: Address;
  readonly rounds: GroupRounds<ServerRequest>;
  readonly member: Member<ServerRequest>;
  /** The number of the connection that counts; messages of others are late. 0: none has said hello since we serve. */
  epoch = 0;
  /** Number of the last request that has been processed. */
  lastRequest = 0;
  /** True once the client has said hello to this server, whatever process that was then. */
  heard = false;
  /** Number of the last request that its client repeats to a server that was started again, as it said in `hello`. */
  lastRepeated = 0;
  /** Number of the last request that changed parameters or optimiser for everybody; earlier ones are not done again. */
  lastConfiguration = 0;
  /** Requests up to this one are in the latest durable snapshot. */
  durable = 0;
  /** Barriers that all workers of the client have reached. */
  barrier = 0;
  workersLeft = 0;
  /** The reason why it counts as lost, until it says hello again; where workers come and go, for good. */
  lost: ShoalError | undefined;
  /** It has come later, where workers come and go; and it declares again what the one before it had. */
  joins = false;
  declaresAgain = false;
  /** True once another client has its workers. */
  replaced = false;
  /** True if the client is lost and its launcher will start another one in its place. */
  returns = false;
  /** Memory that the client has announced, by its number. */
  readonly regions = new Map<number, { readonly handle: string; readonly bytes: number }>();
  /** Messages about parameters that have not been declared here again, in order. */
  blocked: Msg[] = [];
  /** Requests with pushes that are not settled, and some that are. */
  #unsettled: ServerRequest[] = [];
  /** Length of `#unsettled` at which it is looked through again. */
  #unsettledMost = unsettledLeast;
  readonly #barrierRequests: { id: number; barrier: number }[] = [];
  pendingBytes = 0;

  constructor(rounds: GroupRounds<ServerRequest>, member: Member<ServerRequest>) {
    this.address = member.address;
    this.rounds = rounds;
    this.member = member;
  }

  hold(request: ServerRequest): void {
    this.#unsettled.push(request);
    if (this.#unsettled.length < this.#unsettledMost) return;
    this.#dropSettled();
    this.#unsettledMost = Math.max(unsettledLeast, 2 * this.#unsettled.length);
  }

  /** Messages of pushes that are not settled, in the order they were made. */
  unsettledMessages(): Msg[] {
    this.#dropSettled();
    return this.#unsettled.toSorted((a, b) => a.id - b.id).map(({ msg }) => msg);
  }

  /** Number of its requests that wait: pushes that are not settled, barriers, and what is held back. */
  get waiting(): number {
    this.#dropSettled();
    return this.#unsettled.length + this.#barrierRequests.length + this.blocked.length;
  }

  #dropSettled(): void {
    this.#unsettled = this.#unsettled.filter(({ unsettled }) => unsettled > 0);
  }

  /** The last request such that it and all before it are settled. */
  settledUpTo(): number {
    this.#dropSettled();
    // Not in order: what came again over another connection is behind what has not come again yet.
    let least = this.lastRequest + 1;
    for (const { id } of this.#unsettled) least = Math.min(least, id);
    return least - 1;
  }

  waitForBarrier(id: number, barrier: number): void {
    this.#barrierRequests.push({ id, barrier });
  }

  /** Requests for barriers up to this one. */
  takeBarriers(released: number): number[] {
    const due = this.#barrierRequests.filter(({ barrier }) => barrier <= released);
    const rest = this.#barrierRequests.filter(({ barrier }) => barrier > released);
    this.#barrierRequests.splice(0, this.#barrierRequests.length, ...rest);
    return due.map(({ id }) => id);
  }

  /** Begins anew over another connection: requests of the last one are asked again. */
  renew(epoch: number, lastRepeated: number): void {
    this.epoch = epoch;
    this.heard = true;
    this.lastRepeated = lastRepeated;
    this.lost = undefined;
    this.blocked = [];
    this.#barrierRequests.length = 0;
  }
}
