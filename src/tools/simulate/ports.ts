/** Network ports, full duplex. Going out, flows take turns a quantum at a time, so that they share the port evenly; coming in, quanta queue
 *  in the order of their arrival, so that many senders to one receiver wait there (incast).
 *
 *      flow 0→4  [q][q]──┐                            ┌─▶ [q][q][q] ─▶ delivered
 *      flow 0→5  [q]─────┴─▶ out, turn by turn ─ latency ─▶ in, first come first served
 *
 *  A quantum may leave the receiver's port while it still enters the sender's (cut-through). */
import { eventOf, type EventQueue } from './event-queue.ts';
import * as message from './messages.ts';
import type { SimulationModel } from './model.ts';
import { none } from './records.ts';

/** The world that the ports are in. */
export interface PortsOptions {
  readonly model: Pick<SimulationModel, 'networkLatency' | 'networkByte' | 'quantumBytes'>;
  readonly queue: EventQueue;
  readonly messages: message.Messages;
  /** The port of each rank that is the target of a message. */
  readonly portOf: readonly number[];
  /** Called when a message's last byte has left the sender's port. */
  readonly left: (sent: number, now: number) => void;
}

export class Ports {
  readonly #options: PortsOptions;
  readonly #messages: message.Messages;
  /** Two messages for each port: the one whose quantum is on its way out, and the first one of the flow whose turn is last. */
  readonly #turns: Int32Array;
  /** Three numbers for each port: the quantum's bytes, the time until which bytes come in, and the seconds that bytes have been going out. */
  readonly #states: Float64Array;
  /** First messages of flows, by hash. */
  readonly #flows: Int32Array;

  constructor(count: number, options: PortsOptions) {
    this.#options = options;
    this.#messages = options.messages;
    this.#turns = new Int32Array(2 * count).fill(none);
    this.#states = new Float64Array(3 * count);
    this.#flows = new Int32Array(2 ** Math.min(20, Math.ceil(Math.log2(64 * options.portOf.length)))).fill(none);
  }

  /** Seconds that bytes have been going out of the busiest port. */
  get busiestSeconds(): number {
    return this.#states.reduce((most, seconds, index) => (index % 3 === 2 ? Math.max(most, seconds) : most), 0);
  }

  send(now: number, port: number, sent: number): void {
    const messages = this.#messages;
    const hash = this.#hash(sent);
    let first = this.#flows[hash];
    while (first !== none && !this.#isSameFlow(first, sent)) first = messages.get(first, message.nextHash);
    if (first === none) {
      messages.set(sent, message.last, sent);
      messages.set(sent, message.nextHash, this.#flows[hash]);
      this.#flows[hash] = sent;
      this.#takesTurn(port, sent);
      if (this.#turns[2 * port] === sent) this.#begin(now, port, sent);
    } else {
      messages.set(messages.get(first, message.last), message.next, sent);
      messages.set(first, message.last, sent);
    }
  }

  /** The quantum on its way has left. */
  quantumLeft(now: number, port: number): void {
    const messages = this.#messages;
    const sent = this.#turns[2 * port];
    this.#turns[2 * port] = messages.get(sent, message.nextFlow);
    messages.set(sent, message.nextFlow, none);
    messages.bytes[sent] -= this.#states[3 * port];
    if (messages.bytes[sent] > 0) this.#takesTurn(port, sent);
    else this.#end(now, port, sent);
    const first = this.#turns[2 * port];
    if (first !== none) this.#begin(now, port, first);
  }

  /** The flow's next message takes the place of its first one. */
  #end(now: number, port: number, sent: number): void {
    const messages = this.#messages;
    const [next, behind, hash] = [messages.get(sent, message.next), messages.get(sent, message.nextHash), this.#hash(sent)];
    if (next !== none) {
      messages.set(next, message.last, messages.get(sent, message.last));
      messages.set(next, message.nextHash, behind);
    }
    const instead = next === none ? behind : next;
    let before = this.#flows[hash];
    if (before === sent) this.#flows[hash] = instead;
    else {
      while (messages.get(before, message.nextHash) !== sent) before = messages.get(before, message.nextHash);
      messages.set(before, message.nextHash, instead);
    }
    this.#options.left(sent, now);
    if (next !== none) this.#takesTurn(port, next);
  }

  #takesTurn(port: number, flow: number): void {
    if (this.#turns[2 * port] === none) this.#turns[2 * port] = flow;
    else this.#messages.set(this.#turns[2 * port + 1], message.nextFlow, flow);
    this.#turns[2 * port + 1] = flow;
  }

  #begin(now: number, port: number, sent: number): void {
    const { model, portOf, queue } = this.#options;
    const remaining = this.#messages.bytes[sent];
    const quantum = Math.min(model.quantumBytes, remaining);
    const seconds = quantum * model.networkByte;
    this.#states[3 * port] = quantum;
    this.#states[3 * port + 2] += seconds;
    const entering = 3 * portOf[this.#messages.get(sent, message.target)] + 1;
    const entered = Math.max(now + model.networkLatency, this.#states[entering]) + seconds;
    this.#states[entering] = entered;
    if (quantum === remaining) queue.at(entered, eventOf('take', sent));
    queue.at(now + seconds, eventOf('quantum', port));
  }

  #isSameFlow(one: number, other: number): boolean {
    const messages = this.#messages;
    const isSameOrigin = messages.get(one, message.origin) === messages.get(other, message.origin);
    return isSameOrigin && messages.get(one, message.target) === messages.get(other, message.target);
  }

  #hash(sent: number): number {
    const origin = Math.imul(this.#messages.get(sent, message.origin), 0x9e3779b1);
    return (Math.imul(origin ^ this.#messages.get(sent, message.target), 0x85ebca6b) >>> 8) & (this.#flows.length - 1);
  }
}
