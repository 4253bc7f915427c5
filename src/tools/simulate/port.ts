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
  /** Called when the message's last byte has left the sender's port. */
  left(now: number): void;
  /** Called with the time at which its last byte has come out of the receiver's port. */
  delivered(time: number): void;
}

interface Flow {
  readonly messages: Message[];
  /** Bytes of the first message that have not left. */
  remaining: number;
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
  /** Flows with something to send; the first one's quantum is on its way out. */
  readonly #turns: Flow[] = [];
  #quantum = 0;
  #enteringUntil = 0;
  /** Seconds that bytes have been going out. */
  busySeconds = 0;

  constructor(queue: EventQueue, rates: PortRates) {
    this.#queue = queue;
    this.#rates = rates;
  }

  /** @param flowKey messages with the same key stay in order. */
  send(now: number, flowKey: number, message: Message): void {
    let flow = this.#flows.get(flowKey);
    if (flow === undefined) {
      flow = { messages: [], remaining: 0 };
      this.#flows.set(flowKey, flow);
    }
    flow.messages.push(message);
    if (flow.messages.length > 1) return;
    flow.remaining = message.bytes;
    this.#turns.push(flow);
    if (this.#turns.length === 1) this.#begin(now);
  }

  /** The quantum on its way has left. */
  act(now: number): void {
    const flow = must(this.#turns.shift(), () => 'a quantum has a flow');
    flow.remaining -= this.#quantum;
    if (flow.remaining <= 0) {
      must(flow.messages.shift(), () => 'a quantum has a message').left(now);
      if (flow.messages.length > 0) flow.remaining = flow.messages[0].bytes;
    }
    if (flow.messages.length > 0) this.#turns.push(flow);
    if (this.#turns.length > 0) this.#begin(now);
  }

  #begin(now: number): void {
    const { latency, secondsPerByte, quantumBytes } = this.#rates;
    const flow = this.#turns[0];
    const message = flow.messages[0];
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
