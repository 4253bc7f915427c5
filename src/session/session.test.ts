/** Two ends against a reference model: every message of a sender reaches each process that is its peer once and in order,
 *  whatever happens to connections and processes meanwhile. */
import * as fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { seededRandom, type Random } from '../base/random.ts';
import { Session, type Counters, type Greeting, type Unit } from './session.ts';

interface Data extends Unit {
  readonly sequence: number;
  readonly messages: readonly string[];
}

/** A packet; ends drop packets that an earlier connection delivers late. */
type Packet = { readonly connection: number; readonly counters: Counters } & (
  | { readonly kind: 'hello' | 'welcome'; readonly greeting: Greeting }
  | { readonly kind: 'data'; readonly data: Data }
  | { readonly kind: 'credit' }
);

const windowMessages = 6;
const windowBytes = 40;
const costOf = (message: string): number => message.length;

/** One process that is an end: an application that sends and takes, over a session. */
class End {
  readonly session: Session<Data>;
  readonly incarnation: string;
  connection = 0;
  #made = 0;
  readonly waiting: string[] = [];
  readonly #arrived: { readonly message: string; readonly epoch: number }[] = [];
  /** Messages that have come, in order; they are gone with the process. */
  readonly received: string[] = [];
  readonly #out: Packet[];

  constructor({ id, name, out }: { id: number; name: string; out: Packet[] }) {
    this.session = new Session({ id, windowMessages, windowBytes });
    this.incarnation = `${name}${id}`;
    this.#out = out;
  }

  get made(): readonly string[] {
    return Array.from({ length: this.#made }, (_, k) => `${this.incarnation}:${k}`);
  }

  make(): void {
    this.waiting.push(`${this.incarnation}:${this.#made++}`);
    this.pump();
  }

  pump(): void {
    while (this.session.open) {
      const again = this.session.again();
      if (again !== undefined) {
        this.#post(again.messages);
        continue;
      }
      if (this.session.isBehind) return;
      const messages: string[] = [];
      let cost = 0;
      while (this.waiting.length > 0 && messages.length < Math.min(3, this.session.roomMessages)) {
        const next = costOf(this.waiting[0]);
        if (cost + next > this.session.roomBytes && (messages.length > 0 || !this.session.idle)) break;
        cost += next;
        messages.push(this.waiting.shift()!);
      }
      if (messages.length === 0) return;
      this.#post(messages);
    }
  }

  #post(messages: readonly string[]): void {
    const cost = messages.reduce((sum, message) => sum + costOf(message), 0);
    const data = { sequence: this.session.sent, messages, count: messages.length, cost };
    this.session.send(data);
    this.#send({ kind: 'data', data });
  }

  hello(): void {
    this.session.close();
    this.session.noteTold();
    this.#send({ kind: 'hello', greeting: this.session.greeting });
  }

  take(): void {
    const next = this.#arrived.shift();
    if (next === undefined || !this.session.taken(next.epoch, costOf(next.message))) return;
    if (this.session.isDue) this.credit();
  }

  credit(): void {
    if (!this.session.open || !this.session.untold) return;
    this.session.noteTold();
    this.#send({ kind: 'credit' });
  }

  on(packet: Packet): void {
    if (packet.connection !== this.connection) return;
    if (packet.kind === 'hello' || packet.kind === 'welcome') {
      this.session.greet(packet.greeting, packet.counters);
      if (packet.kind === 'hello') {
        this.session.noteTold();
        this.#send({ kind: 'welcome', greeting: this.session.greeting });
      }
      this.credit();
    } else if (this.session.open) {
      this.session.acknowledge(packet.counters);
      if (packet.kind === 'data' && !this.#receive(packet.data)) return this.hello();
    }
    this.pump();
  }

  #receive({ sequence, messages }: Data): boolean {
    const known = this.session.receive(sequence);
    if (known === 'lost') return false;
    for (const message of messages.slice(known)) {
      this.session.arrived(costOf(message));
      this.#arrived.push({ message, epoch: this.session.epoch });
      this.received.push(message);
    }
    return true;
  }

  #send(packet: { kind: 'hello' | 'welcome'; greeting: Greeting } | { kind: 'data'; data: Data } | { kind: 'credit' }): void {
    this.#out.push({ ...packet, counters: this.session.counters, connection: this.connection });
  }
}

class TwoEnds {
  readonly #random: Random;
  readonly #nets: [Packet[], Packet[]] = [[], []];
  readonly ends: [End, End];
  /** Ends of processes that have ended. */
  readonly past: [End[], End[]] = [[], []];
  #connection = 0;
  #nextId = 1;

  constructor(random: Random) {
    this.#random = random;
    this.ends = [this.#start(0), this.#start(1)];
  }

  #start(side: 0 | 1): End {
    return new End({ id: this.#nextId++, name: 'ab'[side], out: this.#nets[side] });
  }

  restart(side: 0 | 1): void {
    this.past[side].push(this.ends[side]);
    this.ends[side] = this.#start(side);
    this.disconnect();
  }

  disconnect(): void {
    this.#connection++;
    // Packets on the old connection are lost, or late.
    for (const net of this.#nets) if (this.#random.next() < 0.5) net.length = 0;
    for (const end of this.ends) {
      end.connection = this.#connection;
      end.session.close();
    }
  }

  connect(): void {
    this.disconnect();
    this.ends[this.#random.next() < 0.5 ? 0 : 1].hello();
  }

  /** Delivers one packet, perhaps not the first, perhaps twice or never. Greetings are not reordered. */
  deliver(side: 0 | 1, faults: 'any' | 'none'): void {
    const net = this.#nets[side];
    if (net.length === 0) return;
    const movable = (packet: Packet): boolean => packet.kind === 'data' || packet.kind === 'credit';
    const dice = faults === 'none' ? 1 : this.#random.next();
    const at = dice < 0.1 && net.length > 1 && movable(net[0]) && movable(net[1]) ? 1 : 0;
    const [packet] = net.splice(at, 1);
    if (dice > 0.1 && dice < 0.15) return;
    if (dice > 0.15 && dice < 0.2 && movable(packet)) net.unshift(packet);
    this.ends[1 - side].on(packet);
  }

  settle(): void {
    this.connect();
    for (let idle = 0; idle < 3; idle++) {
      for (const side of [0, 1] as const) {
        while (this.#nets[side].length > 0) {
          idle = 0;
          this.deliver(side, 'none');
        }
        for (let k = 0; k < 64; k++) this.ends[side].take();
        this.ends[side].credit();
      }
    }
  }

  step(): void {
    const dice = this.#random.next();
    const side = this.#random.next() < 0.5 ? 0 : 1;
    if (dice < 0.25) this.ends[side].make();
    else if (dice < 0.7) this.deliver(side, 'any');
    else if (dice < 0.85) this.ends[side].take();
    else if (dice < 0.9) this.ends[side].credit();
    else if (dice < 0.93) this.ends[side].hello();
    else if (dice < 0.97) this.connect();
    else if (dice < 0.98) this.disconnect();
    else if (dice < 0.99) this.restart(side);
  }
}

/** Messages in the log that one incarnation of the sender made. */
function of(sender: End, log: readonly string[]): string[] {
  return log.filter((message) => message.startsWith(`${sender.incarnation}:`));
}

const runs = Number(process.env.SESSION_WORLDS ?? 500);

describe('a session', () => {
  it('delivers every message once and in order to each process that is the peer', () => {
    fc.assert(
      fc.property(fc.integer(), fc.integer({ min: 1, max: 400 }), (seed, steps) => {
        const world = new TwoEnds(seededRandom(seed));
        for (let k = 0; k < steps; k++) world.step();
        world.settle();
        for (const [from, to] of [
          [0, 1],
          [1, 0],
        ] as const) {
          const sender = world.ends[from];
          const receivers = [...world.past[to], world.ends[to]];
          for (const one of [...world.past[from], sender]) {
            // No process has a message twice, or one before another that was made earlier.
            for (const { received } of receivers) {
              const numbers = of(one, received).map((message) => Number(message.split(':')[1]));
              expect(numbers.every((number, k) => k === 0 || number === numbers[k - 1] + 1)).toBe(true);
            }
          }
          // Nothing that the living sender made is missing, in the end.
          const everywhere = new Set(receivers.flatMap(({ received }) => of(sender, received)));
          expect([...sender.made].filter((message) => !everywhere.has(message))).toEqual([]);
          expect([sender.waiting.length, sender.session.pending]).toEqual([0, 0]);
        }
      }),
      { numRuns: runs },
    );
  });

  it('refuses a peer that claims messages it was not sent, or sends more than its window', () => {
    const session = new Session<Unit>({ id: 1, windowMessages: 2, windowBytes: 100 });
    session.greet({ session: 2, knownSession: 0, windowMessages: 1, windowBytes: 1 }, { received: 0, consumed: 0, consumedBytes: 0 });
    expect(() => session.acknowledge({ received: 1, consumed: 0, consumedBytes: 0 })).toThrow(/claims 1 messages received.* of 0 sent/);
    session.send({ count: 1, cost: 1 });
    expect(() => session.acknowledge({ received: 0, consumed: 1, consumedBytes: 1 })).toThrow(/claims/);
    session.arrived(1000);
    expect(() => session.arrived(1)).toThrow(/2 messages with 1001 bytes ahead/);
  });

  it('refuses a peer that has lost received messages without having begun anew', () => {
    const session = new Session<Unit>({ id: 1, windowMessages: 9, windowBytes: 100 });
    const window = { windowMessages: 9, windowBytes: 100 };
    session.greet({ session: 2, knownSession: 0, ...window }, { received: 0, consumed: 0, consumedBytes: 0 });
    for (let k = 0; k < 3; k++) session.send({ count: 1, cost: 1 });
    session.acknowledge({ received: 2, consumed: 2, consumedBytes: 2 });
    expect(session.pending).toBe(1);
    expect(() => session.greet({ session: 2, knownSession: 1, ...window }, { received: 1, consumed: 1, consumedBytes: 1 })).toThrow(
      /has lost 1 of the messages/,
    );
    session.greet({ session: 3, knownSession: 1, ...window }, { received: 0, consumed: 0, consumedBytes: 0 });
    expect([session.sent, session.isBehind, session.again(), session.again()]).toEqual([0, true, { count: 1, cost: 1 }, undefined]);
  });
});
