/** Routers and dealers with their pipes, on a backend that does what the test says. */
import { expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import type { Backend, Pipe, PipeHandlers } from './backend.ts';
import { MessagingContext } from './context.ts';
import { Dealer } from './dealer.ts';
import { defaultLimits } from './limits.ts';
import { decodePacket, encodeControl, encodeData, encodeGreeting, noCounters, PacketKind, type Greeting } from './remote/packet.ts';
import { Msg } from './msg.ts';
import { Router } from './router.ts';

const limits = defaultLimits;

class HeldPipe implements Pipe {
  readonly description = 'held';
  readonly pointers = false;
  readonly received: number[] = [];
  /** Types of the messages in packets of data, with the number of the first. */
  readonly data: { readonly sequence: number; readonly types: number[] }[] = [];
  readonly isClosed: Promise<void>;
  closing = false;
  letClose: () => void = () => undefined;
  #handlers: PipeHandlers | undefined;

  constructor() {
    this.isClosed = new Promise((resolve) => (this.letClose = resolve));
  }

  setHandlers(handlers: PipeHandlers): void {
    this.#handlers = handlers;
  }

  send(parts: readonly Uint8Array[]): void {
    const packet = decodePacket([...parts], { limits, pointers: [] });
    this.received.push(packet.kind);
    if (packet.kind === PacketKind.data) this.data.push({ sequence: packet.sequence, types: packet.messages.map(({ type }) => type) });
  }

  close(): Promise<void> {
    this.closing = true;
    return this.isClosed;
  }

  hello(address: bigint, brief = false, session = Number(address)): void {
    this.say(encodeGreeting('hello', greetingOf({ session, address, brief }), noCounters));
  }

  say(packet: Uint8Array): void {
    this.#handlers?.onParts([packet], []);
  }

  break(): void {
    this.#handlers?.onClose(new ShoalError('peer-lost', 'the connection broke'));
  }
}

function greetingOf(own: { session: number; address: bigint; brief: boolean; knownSession?: number }): Greeting {
  const { windowMessages, windowBytes, messageBytes, frames } = limits;
  return { knownSession: 0, windowMessages, windowBytes, messageBytes, frames, ...own };
}

class HeldContext extends MessagingContext {
  connect: (pipe: Pipe) => void = () => undefined;
  /** Pipes for dealers, in their order. */
  readonly pipes: HeldPipe[] = [];

  override async backendOf(): Promise<Backend> {
    return {
      listen: async (url, onPipe) => {
        this.connect = onPipe;
        return { url, close: async () => undefined };
      },
      connect: () => Promise.resolve(this.pipes.shift() ?? Promise.reject(new Error('nobody connects from here'))),
      close: async () => undefined,
    };
  }
}

it('a router that closes welcomes nobody, however long its connections take to end', async () => {
  const context = new HeldContext({ world: 'held', secret: new Uint8Array(32) });
  const router = new Router(context);
  await router.bind('held://');
  const [first, second] = [new HeldPipe(), new HeldPipe()];
  context.connect(first);
  first.hello(1n);
  expect(first.received).toEqual([PacketKind.welcome]);
  const closed = router.close({ timeoutMs: 0 });
  await new Promise(setImmediate);
  expect(first.closing).toBe(true);
  // It has heard the goodbye of another router, or of this one.
  context.connect(second);
  second.hello(2n);
  expect({ closing: second.closing, received: second.received }).toEqual({ closing: true, received: [] });
  for (const pipe of [first, second]) pipe.letClose();
  await closed;
  await context.close();
});

function message(type: number): Msg {
  const msg = new Msg(0n, 1n);
  msg.type = type;
  return msg;
}

it.each([
  {
    brief: false,
    later: [
      { sequence: 0, types: [1, 2] },
      { sequence: 2, types: [3] },
    ],
    pending: 3,
  },
  { brief: true, later: [{ sequence: 0, types: [3] }], pending: 1 },
])('what a router had for a dealer whose connection broke; brief: $brief', async ({ brief, later, pending }) => {
  const context = new HeldContext({ world: 'held', secret: new Uint8Array(32) });
  const router = new Router(context);
  await router.bind('held://');
  const [first, second] = [new HeldPipe(), new HeldPipe()];
  context.connect(first);
  first.hello(1n, brief);
  router.send(message(1));
  await new Promise(setImmediate);
  expect(first.data).toEqual([{ sequence: 0, types: [1] }]);
  first.break();
  router.send(message(2));
  // A dealer that ends with its connection has a successor, which is another session.
  context.connect(second);
  second.hello(1n, brief, 7);
  router.send(message(3));
  await new Promise(setImmediate);
  const all = second.data.flatMap(({ types }) => types);
  expect(all).toEqual(later.flatMap(({ types }) => types));
  expect(second.data[0].sequence).toBe(0);
  for (const pipe of [first, second]) pipe.letClose();
  expect(await router.close({ timeoutMs: 0 })).toBe(pending);
  await context.close();
});

it.each(['break', 'reset', 'gap'] as const)('a dealer that ends with its connection: %s', async (how) => {
  const context = new HeldContext({ world: 'held', secret: new Uint8Array(32) });
  const pipe = new HeldPipe();
  context.pipes.push(pipe);
  const dealer = new Dealer(context, { address: 1n, breaks: 'end' });
  dealer.send(message(1));
  const connected = dealer.connect('held://');
  await new Promise(setImmediate);
  // Before it is welcomed it may be asked again.
  pipe.say(encodeControl('reset', noCounters));
  expect(pipe.received).toEqual([PacketKind.hello, PacketKind.hello]);
  pipe.say(encodeGreeting('welcome', greetingOf({ session: 9, address: 0n, brief: true }), noCounters));
  await connected;
  expect(pipe.data).toEqual([{ sequence: 0, types: [1] }]);
  if (how === 'break') pipe.break();
  else if (how === 'reset') pipe.say(encodeControl('reset', noCounters));
  else pipe.say(encodeData([message(2)], 1, noCounters).parts[0]);
  await expect(dealer.receive()).rejects.toMatchObject({ code: 'peer-lost' });
  expect(() => dealer.send(message(3))).toThrow(expect.objectContaining({ code: 'peer-lost' }));
  pipe.letClose();
  expect(await dealer.close()).toBe(0);
  await context.close();
});
