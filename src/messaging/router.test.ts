/** What a router does with pipes, on a backend that does what the test says. */
import { expect, it } from 'vitest';
import type { Backend, Pipe, PipeHandlers } from './backend.ts';
import { MessagingContext } from './context.ts';
import { defaultLimits } from './limits.ts';
import { decodePacket, encodeGreeting, noCounters, PacketKind } from './link/wire.ts';
import { Router } from './router.ts';

const limits = defaultLimits;

class HeldPipe implements Pipe {
  readonly description = 'held';
  readonly pointers = false;
  readonly received: number[] = [];
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
    this.received.push(decodePacket([...parts], { limits, pointers: [] }).kind);
  }

  close(): Promise<void> {
    this.closing = true;
    return this.isClosed;
  }

  hello(address: bigint): void {
    const { windowMessages, windowBytes, messageBytes, frames } = limits;
    const greeting = { session: Number(address), knownSession: 0, address, windowMessages, windowBytes, messageBytes, frames };
    this.#handlers?.onParts([encodeGreeting('hello', greeting, noCounters)], []);
  }
}

class HeldContext extends MessagingContext {
  connect: (pipe: Pipe) => void = () => undefined;

  override async backendOf(): Promise<Backend> {
    return {
      listen: async (url, onPipe) => {
        this.connect = onPipe;
        return { url, close: async () => undefined };
      },
      connect: () => Promise.reject(new Error('nobody connects from here')),
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
