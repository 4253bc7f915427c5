/** inproc between real threads: messages, large frames, shared memory, several threads at one router. */
import { Worker } from 'node:worker_threads';
import { once } from 'node:events';
import { afterEach, expect, it } from 'vitest';
import { MessagingContext, Msg, Router } from '../../src/messaging/index.ts';
import { fixtureScript } from '../support/fixtures.ts';

const threads: Worker[] = [];
afterEach(async () => {
  await Promise.all(threads.splice(0).map((thread) => thread.terminate()));
});

function startThread(workerData: { world: string; url: string; address: bigint }): Worker {
  const thread = new Worker(fixtureScript('messaging-thread'), { workerData });
  threads.push(thread);
  return thread;
}

const world = `threads-${process.pid}`;
const url = 'inproc://router';

it('threads answer each at its address, in order, whatever the size', async () => {
  await using context = new MessagingContext({ world, secret: new Uint8Array(1) });
  await using router = new Router(context);
  const addresses = [1n, 2n, 3n];
  // Messages are sent before the router is bound, and before there are threads: both may come in any order.
  for (const destination of addresses) router.send(new Msg(0n, destination));
  const running = addresses.map((address) => startThread({ world, url, address }));
  await router.bind(url);
  for (const _ of addresses) await router.receive();

  const rounds = 300;
  const bytesOf = (k: number): number => (k % 50 === 0 ? 700_000 : k % 7 === 0 ? 20_000 : k);
  for (let k = 0; k < rounds; k++) {
    for (const destination of addresses) {
      const msg = new Msg(0n, destination);
      msg.setTarget(k, 0);
      msg.addFrame(new Uint8Array(bytesOf(k)).fill(k));
      router.send(msg);
      await router.writable(destination);
    }
  }
  const next = new Map(addresses.map((address) => [address, 0]));
  for (let k = 0; k < rounds * addresses.length; k++) {
    const answer = await router.receive();
    const expected = next.get(answer.source)!;
    const frame = answer.frameData();
    const right =
      answer.targetValue === expected && frame.length === bytesOf(expected) && frame.every((byte) => byte === (expected & 0xff));
    if (!right) throw new Error(`answer ${answer.targetValue} of ${answer.source} where ${expected} was due`);
    next.set(answer.source, expected + 1);
  }
  expect([...next.values()]).toEqual([rounds, rounds, rounds]);

  const stops = addresses.map((destination) => {
    const stop = new Msg(0n, destination);
    stop.type = 2;
    return stop;
  });
  const exits = running.map((thread) => once(thread, 'exit'));
  for (const stop of stops) router.send(stop);
  expect(await Promise.all(exits)).toEqual([[0], [0], [0]]);
});

it('a pointer is the same memory in the other thread', async () => {
  await using context = new MessagingContext({ world, secret: new Uint8Array(1) });
  await using router = new Router(context);
  await router.bind(url);
  startThread({ world, url, address: 5n });
  const memory = new Uint8Array(new SharedArrayBuffer(100), 20, 30);
  for (let k = 0; k < 3; k++) {
    memory.fill(0);
    const msg = new Msg(0n, 5n);
    msg.addFormatFrame('p', memory);
    router.send(msg);
    const [pointer] = (await router.receive()).parseFormatFrame('p');
    expect(memory.every((byte) => byte === 12)).toBe(true);
    pointer.fill(3);
    expect(memory.every((byte) => byte === 3)).toBe(true);
    expect(new Uint8Array(memory.buffer, 0, 20).every((byte) => byte === 0)).toBe(true);
  }
});
