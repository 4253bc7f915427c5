/** A network port, full duplex. Going out, flows take turns a quantum at a time, so that they share the port evenly; coming
 *  in, quanta queue in the order of their arrival, so that many senders to one receiver wait there (incast).
 *
 *      flow 0→4  [q][q]──┐                            ┌─▶ [q][q][q] ─▶ delivered
 *      flow 0→5  [q]─────┴─▶ out, turn by turn ─ latency ─▶ in, first come first served
 *
 *  A quantum may leave the receiver's port while it still enters the sender's (cut-through). */
import { must } from '../../base/assert.ts';
import type { Actor, EventQueue } from './event-queue.ts';

export interface Message {
  readonly bytes: number;
  readonly target: Port;
  /** The next message of its flow, which the port sets. */
  next?: Message | undefined;
  /** Called when the message's last byte has left the sender's port. */
  left(now: number): void;
  /** Called with the time at which its last byte has come out of the receiver's port. */
  delivered(time: number): void;
}

/** Messages with the same key, in order. A flow without messages is forgotten. */
interface Flow {
  readonly key: number;
  first: Message | undefined;
  last: Message;
  /** Bytes of the first message that have not left. */
  remaining: number;
  /** The flow whose turn comes after this one's. */
  next: Flow | undefined;
}

export interface PortRates {
  readonly latency: number;
  readonly secondsPerByte: number;
  readonly quantumBytes: number;
}

export class Port implements Actor {
  readonly #queue: EventQueue;
  readonly #rates: PortRates;
  readonly #flows = new Map<number, Flow>();
  /** Flows take turns from the first to the last; the first one's quantum is on its way out. */
  #first: Flow | undefined;
  #last: Flow | undefined;
  #quantum = 0;
  #enteringUntil = 0;
  /** Seconds that bytes have been going out. */
  busySeconds = 0;

  constructor(queue: EventQueue, rates: PortRates) {
    this.#queue = queue;
    this.#rates = rates;
  }

  /** @param key messages with the same key stay in order. */
  send(now: number, key: number, message: Message): void {
    const flow = this.#flows.get(key);
    if (flow !== undefined) {
      flow.last.next = message;
      flow.last = message;
      return;
    }
    const begun: Flow = { key, first: message, last: message, remaining: message.bytes, next: undefined };
    this.#flows.set(key, begun);
    if (this.#takesTurn(begun) === 'first') this.#begin(now, begun);
  }

  /** The quantum on its way has left. */
  act(now: number): void {
    const flow = must(this.#first, () => 'a quantum has a flow');
    this.#first = flow.next;
    flow.next = undefined;
    flow.remaining -= this.#quantum;
    if (flow.remaining <= 0) {
      const message = must(flow.first, () => 'a quantum has a message');
      flow.first = message.next;
      message.left(now);
      flow.remaining = flow.first?.bytes ?? 0;
    }
    if (flow.first === undefined) this.#flows.delete(flow.key);
    else this.#takesTurn(flow);
    if (this.#first !== undefined) this.#begin(now, this.#first);
  }

  #takesTurn(flow: Flow): 'first' | 'later' {
    const before = this.#first === undefined ? undefined : this.#last;
    this.#last = flow;
    if (before === undefined) {
      this.#first = flow;
      return 'first';
    }
    before.next = flow;
    return 'later';
  }

  #begin(now: number, flow: Flow): void {
    const { latency, secondsPerByte, quantumBytes } = this.#rates;
    const message = must(flow.first, () => 'a flow with a turn has a message');
    this.#quantum = Math.min(quantumBytes, flow.remaining);
    const seconds = this.#quantum * secondsPerByte;
    this.busySeconds += seconds;
    const entered = message.target.#enter(now + latency, seconds);
    if (this.#quantum === flow.remaining) message.delivered(entered);
    this.#queue.at(now + seconds, this);
  }

  #enter(arrival: number, seconds: number): number {
    this.#enteringUntil = Math.max(arrival, this.#enteringUntil) + seconds;
    return this.#enteringUntil;
  }
}
