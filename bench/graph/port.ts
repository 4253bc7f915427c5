/** A network port, full duplex. Going out, flows take turns a quantum at a time, so that they share the port evenly; coming
 *  in, quanta queue in the order of their arrival, so that many senders to one receiver wait there (incast).
 *
 *      flow 0→4  [q][q]──┐                            ┌─▶ [q][q][q] ─▶ delivered
 *      flow 0→5  [q]─────┴─▶ out, turn by turn ─ latency ─▶ in, first come first served
 *
 *  A quantum may leave the receiver's port while it still enters the sender's (cut-through). */
import { must } from '../../src/base/assert.ts';

/** Virtual time. */
export interface Events {
  at(time: number, callback: (now: number) => void): void;
}

export interface Message {
  readonly target: Port;
  /** Messages with the same key are a flow: they stay in order. */
  readonly flow: number;
  /** Bytes that have not left. */
  remaining: number;
  /** The port's own: the next message of the flow and, of a flow's first one, its last one and the first one of the flow whose turn is next. */
  next?: Message | undefined;
  last?: Message | undefined;
  nextFlow?: Message | undefined;
  /** Called when the message's last byte has left the sender's port. */
  left(now: number): void;
  /** Called with the time at which its last byte has come out of the receiver's port. */
  delivered(time: number): void;
}

export interface PortRates {
  readonly latency: number;
  readonly secondsPerByte: number;
  readonly quantumBytes: number;
}

export class Port {
  readonly #queue: Events;
  readonly #rates: PortRates;
  /** First messages of the flows that have any. */
  readonly #flows = new Map<number, Message>();
  /** Flows take turns from the first to the last; the first one's quantum is on its way out. */
  #first: Message | undefined;
  #last: Message | undefined;
  #quantum = 0;
  #enteringUntil = 0;
  /** Seconds that bytes have been going out. */
  busySeconds = 0;

  constructor(queue: Events, rates: PortRates) {
    this.#queue = queue;
    this.#rates = rates;
  }

  send(now: number, message: Message): void {
    const first = this.#flows.get(message.flow);
    if (first?.last !== undefined) {
      first.last.next = message;
      first.last = message;
      return;
    }
    message.last = message;
    this.#flows.set(message.flow, message);
    this.#takesTurn(message);
    if (this.#first === message) this.#begin(now, message);
  }

  /** The quantum on its way has left. */
  #quantumLeft(now: number): void {
    const message = must(this.#first, () => 'a quantum has a message');
    this.#first = message.nextFlow;
    message.nextFlow = undefined;
    message.remaining -= this.#quantum;
    if (message.remaining > 0) this.#takesTurn(message);
    else this.#end(now, message);
    if (this.#first !== undefined) this.#begin(now, this.#first);
  }

  #end(now: number, message: Message): void {
    const { next, flow } = message;
    message.left(now);
    if (next === undefined) {
      this.#flows.delete(flow);
      return;
    }
    next.last = message.last;
    this.#flows.set(flow, next);
    this.#takesTurn(next);
  }

  #takesTurn(flow: Message): void {
    if (this.#first === undefined) this.#first = flow;
    else if (this.#last !== undefined) this.#last.nextFlow = flow;
    this.#last = flow;
  }

  #begin(now: number, message: Message): void {
    const { latency, secondsPerByte, quantumBytes } = this.#rates;
    this.#quantum = Math.min(quantumBytes, message.remaining);
    const seconds = this.#quantum * secondsPerByte;
    this.busySeconds += seconds;
    const entered = message.target.#enter(now + latency, seconds);
    if (this.#quantum === message.remaining) message.delivered(entered);
    this.#queue.at(now + seconds, (left) => this.#quantumLeft(left));
  }

  #enter(arrival: number, seconds: number): number {
    this.#enteringUntil = Math.max(arrival, this.#enteringUntil) + seconds;
    return this.#enteringUntil;
  }
}
