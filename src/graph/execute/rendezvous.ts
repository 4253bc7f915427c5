/** Where a Send meets its receive. One per step; values of different steps never meet. */
import { ShoalError } from '../../base/errors.ts';
import { parseRendezvousKey } from '../placement/rendezvous-key.ts';
import type { Flow } from './step-machine.ts';

export interface Rendezvous {
  /** The value, or that it is dead, for whoever receives this key; does not wait.
   *  @throws ShoalError `usage` when the key has been sent already. */
  send(key: string, value: Flow): void;
  /** Waits until the key is sent. */
  recv(key: string): Promise<Flow>;
  /** One request for several keys of one sender: waits for all. A slot is dead when its own value is. An error names its slot and key. */
  recvFused(keys: readonly string[]): Promise<readonly Flow[]>;
  /** Everything that waits, and whatever is asked later, fails with this. */
  abort(cause: ShoalError): void;
}

export interface LocalRendezvousOptions {
  /** Keys at most that were sent or asked for in the step. */
  readonly keysMax: number;
}

interface Meeting {
  isSent: boolean;
  isAsked: boolean;
  value: Flow;
  receive: ((value: Flow) => void) | undefined;
  fail: ((cause: ShoalError) => void) | undefined;
}

/** Between the partitions of one process: a table of keys, each sent once and received once. */
export class LocalRendezvous implements Rendezvous {
  readonly #options: LocalRendezvousOptions;
  readonly #meetings = new Map<string, Meeting>();
  #aborted: ShoalError | undefined;
  #requests = 0;

  constructor(options: LocalRendezvousOptions) {
    this.#options = options;
  }

  /** How often something was asked for: a fused receive counts once. */
  get requests(): number {
    return this.#requests;
  }

  /** Keys that are asked for and were not sent. */
  get awaited(): readonly string[] {
    return [...this.#meetings].filter(([, { isAsked, isSent }]) => isAsked && !isSent).map(([key]) => key);
  }

  send(key: string, value: Flow): void {
    if (this.#aborted !== undefined) throw this.#aborted;
    const meeting = this.#meeting(key);
    if (meeting.isSent) throw twice(key, 'sent');
    meeting.isSent = true;
    if (meeting.receive === undefined) meeting.value = value;
    else meeting.receive(value);
    meeting.receive = meeting.fail = undefined;
  }

  recv(key: string): Promise<Flow> {
    this.#requests++;
    return this.#receive(key);
  }

  async recvFused(keys: readonly string[]): Promise<readonly Flow[]> {
    this.#requests++;
    return Promise.all(
      keys.map(async (key, slot) => {
        try {
          return await this.#receive(key);
        } catch (thrown) {
          const cause = ShoalError.from(thrown);
          throw new ShoalError(cause.code, `slot ${slot} of ${keys.length}, ${describeKey(key)}: ${cause.message}`, { cause });
        }
      }),
    );
  }

  abort(cause: ShoalError): void {
    if (this.#aborted !== undefined) return;
    this.#aborted = cause;
    for (const { fail } of this.#meetings.values()) fail?.(cause);
    this.#meetings.clear();
  }

  #receive(key: string): Promise<Flow> {
    return new Promise((resolve, reject) => {
      if (this.#aborted !== undefined) throw this.#aborted;
      const meeting = this.#meeting(key);
      if (meeting.isAsked) throw twice(key, 'asked for');
      meeting.isAsked = true;
      if (!meeting.isSent) {
        meeting.receive = resolve;
        meeting.fail = reject;
        return;
      }
      const { value } = meeting;
      meeting.value = undefined;
      resolve(value);
    });
  }

  #meeting(key: string): Meeting {
    const found = this.#meetings.get(key);
    if (found !== undefined) return found;
    if (this.#meetings.size >= this.#options.keysMax) {
      throw new ShoalError('out-of-memory', `a step has more than ${this.#options.keysMax} rendezvous keys; raise keysMax`);
    }
    const meeting: Meeting = { isSent: false, isAsked: false, value: undefined, receive: undefined, fail: undefined };
    this.#meetings.set(key, meeting);
    return meeting;
  }
}

/** `'edge_0_x' from /job:ps/task:0/device:CPU:0`. */
export function describeKey(key: string): string {
  const { name, sendDevice } = parseRendezvousKey(key);
  return `'${name}' from ${sendDevice}`;
}

function twice(key: string, what: string): ShoalError {
  return new ShoalError('usage', `${describeKey(key)} was ${what} twice in one step: ${key}`);
}
