/** The cost of RecvTensor, and things that never happen: counted and played on a connection that delivers when it is told to. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { ByteWriter } from '../../base/bytes.ts';
import { creditsMax, protocolVersion, RecordType, writeMetadata } from '../protocol/records.ts';
import { sizeClass } from '../protocol/pooled-memory.ts';
import { costOf, exchange, fakePair, inbox, recv, type FakePair, type FakeSide } from '../testing/fake-pair.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import { dense, plain, strings } from './conformance.ts';

describe('a send whose receiver is lost', () => {
  const gone = new ShoalError('peer-lost', 'gone', { peer: 1 });
  /** Sends `x` in step 1. @returns what its `release` was told. */
  const send = ({ a, key }: FakePair, elements = 3): (ShoalError | undefined)[] => {
    const told: (ShoalError | undefined)[] = [];
    const step = a.core.beginStep(1);
    step.send(key('x'), { ...dense(new Float32Array(elements)), release: (cause) => void told.push(cause) });
    return told;
  };

  it('fails with the name of the tensor and of the worker when it was not asked for, and may be sent again when the worker is back', () => {
    const pair = fakePair();
    const told = send(pair);
    pair.a.connection.lose(gone);
    expect(told).toMatchObject([
      { code: 'peer-lost', peer: 1, message: "'x' for /job:worker/task:1/device:CPU:0 was not taken in step 1: gone" },
    ]);
    const back = fakePair();
    pair.a.core.attach({ ...back.b.core.self, incarnation: 9n }, back.a.tensors);
    pair.a.core.endStep(1);
    expect(told).toHaveLength(1);
  });

  it('fails once when it is on its way: told of, queued, or being written', async () => {
    const stages: ((pair: FakePair) => void)[] = [
      () => undefined,
      ({ a, b }) => {
        a.endTurn();
        a.connection.deliver();
        b.endTurn();
        b.connection.deliver();
      },
      ({ a }) => a.endTurn(),
    ];
    for (let count = 1; count <= stages.length; count++) {
      const pair = fakePair();
      recv(pair, 1, 'x');
      pair.settle();
      const told = send(pair);
      for (const stage of stages.slice(0, count)) stage(pair);
      expect(pair.a.connection.posted.map(({ kind }) => kind)).toEqual(count === 3 ? ['write'] : []);
      pair.a.connection.lose(gone);
      await new Promise((resolve) => void setImmediate(resolve));
      expect(told).toMatchObject([{ code: 'peer-lost' }]);
    }
  });
});

describe('sizes that alternate', () => {
  const sizes = [1000, 1300, 1600, 1000, 1600, 1300, 0, 1600];
  const value = (stepId: number): TensorValue => dense(new Float32Array(sizes[stepId % sizes.length]).fill(stepId));
  const steps = (first: number, last: number): number[] => Array.from({ length: last - first + 1 }, (_, k) => first + k);
  const roundTrips = ({ b }: FakePair): number => b.tensors.counters.requests + b.tensors.counters.rerequests;

  it('cost one round trip each when the largest has come once', () => {
    const pair = fakePair();
    const one = (stepId: number): void => expect(exchange(pair, stepId, { x: value(stepId) })).toEqual([plain(value(stepId))]);
    steps(0, 2).forEach(one);
    const before = roundTrips(pair);
    steps(3, 102).forEach(one);
    expect(roundTrips(pair) - before).toBe(100);
  });

  it('cost none beyond their requests when several are received together, and when they stand', () => {
    const pair = fakePair();
    const { a, b, key } = pair;
    const run = (stepId: number): void => {
      const box = inbox();
      b.tensors.recvFused(stepId, [key('x'), key('y')], {
        receive: (slots) => slots.forEach((slot) => 'value' in slot && box.receive(slot.value)),
        fail: box.fail,
      });
      const values = [value(stepId), value(stepId + 1)];
      const step = a.core.beginStep(stepId);
      ['x', 'y'].forEach((name, k) => step.send(key(name), values[k]));
      pair.settle();
      a.core.endStep(stepId);
      expect(box.told).toEqual(values.map(plain));
      for (const each of box.values) each!.release!();
    };
    steps(0, 2).forEach(run);
    const before = roundTrips(pair);
    steps(3, 22).forEach(run);
    expect(roundTrips(pair) - before).toBe(20);
    b.tensors.stand(key('x'), 23, 4);
    steps(23, 42).forEach((stepId) => {
      expect(exchange(pair, stepId, { x: value(stepId) })).toEqual([plain(value(stepId))]);
      b.tensors.endStep(stepId);
    });
    expect(roundTrips(pair) - before).toBe(21);
  });

  it('leave no large places behind: a size that has not come in 128 receives is forgotten', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense(new Float32Array(16_000)) });
    const placeBytes = steps(2, 140).map((stepId) => {
      const { values } = recv(pair, stepId, 'x');
      const { inUse } = pair.b.memory.usage;
      pair.a.core.beginStep(stepId).send(pair.key('x'), dense([stepId]));
      pair.settle();
      pair.a.core.endStep(stepId);
      values[0]!.release!();
      return inUse;
    });
    expect(placeBytes.findIndex((bytes) => bytes < 64_000)).toBe(128);
    expect(placeBytes.at(-1)).toBe(64);
  });

  it('take at most four times the memory of the last tensor where that is much', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense(new Float32Array(1_000_000)) });
    exchange(pair, 2, { x: dense(new Float32Array(25_000)) });
    recv(pair, 3, 'x');
    expect(pair.b.memory.usage.inUse).toBe(sizeClass(400_000));
  });

  it('take a smaller place where memory does not suffice for the largest', () => {
    const pair = fakePair({ bytesMax: 3 << 20, slabBytes: 1 << 16 });
    exchange(pair, 1, { x: dense(new Float32Array(600_000)) });
    const smaller = dense(new Float32Array(200_000));
    exchange(pair, 2, { x: smaller });
    const held = recv(pair, 3, 'y');
    pair.a.core.beginStep(3).send(pair.key('y'), dense(new Float32Array(400_000)));
    pair.settle();
    expect(held.values).toHaveLength(1);
    expect(exchange(pair, 4, { x: smaller })).toEqual([plain(smaller)]);
    expect(pair.b.memory.usage.bytes).toBeLessThan(3 << 20);
  });
});

describe('RecvTensor', () => {
  it('costs one request, one write and no copy; for the first time a round trip more', () => {
    const pair = fakePair();
    const value = dense([1, 2, 3]);
    expect(costOf(pair, () => expect(exchange(pair, 1, { x: value })).toEqual([plain(value)]))).toEqual({
      messages: 3,
      writes: 1,
      immediates: 1,
    });
    for (let stepId = 2; stepId < 20; stepId++)
      expect(costOf(pair, () => expect(exchange(pair, stepId, { x: value })).toEqual([plain(value)]))).toEqual({
        messages: 1,
        writes: 1,
        immediates: 1,
      });
    for (const { tensors } of [pair.a, pair.b]) expect(tensors.counters).toMatchObject({ bytesCopied: 0, bytesSerialized: 0 });
    expect(pair.a.tensors.counters.bytesWritten).toBe(12 * 19);
    expect(pair.b.tensors.counters).toMatchObject({ requests: 19, rerequests: 1 });
    expect(pair.b.memory.usage.inUse).toBe(0);
  });

  it('costs no round trip more for a dead tensor, a smaller one, a growing string, an empty one', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense(new Float32Array(100)), s: strings('a'.repeat(260)) });
    const cases: [TensorValue | undefined, object][] = [
      [undefined, { messages: 2, writes: 0, immediates: 0 }],
      [dense(new Float32Array(100)), { messages: 1, writes: 1, immediates: 1 }],
      [undefined, { messages: 2, writes: 0, immediates: 0 }],
      [dense([5]), { messages: 2, writes: 1, immediates: 1 }],
    ];
    cases.forEach(([value, cost], k) =>
      expect(costOf(pair, () => expect(exchange(pair, k + 2, { x: value })).toEqual([plain(value)]))).toEqual(cost),
    );
    for (let k = 0; k < 10; k++) expect(costOf(pair, () => exchange(pair, 20 + k, { s: strings('a'.repeat(261 + k * 5)) })).writes).toBe(1);
    expect(pair.b.tensors.counters.rerequests).toBe(2);
    exchange(pair, 40, { e: dense([], [0, 3]) });
    expect(costOf(pair, () => expect(exchange(pair, 41, { e: dense([], [0, 3]) })).toEqual([plain(dense([], [0, 3]))]))).toEqual({
      messages: 1,
      writes: 0,
      immediates: 1,
    });
    expect(pair.a.tensors.counters.emptyTensors).toBe(2);
  });

  it('puts requests of one turn into one message, and answers of one turn into one announcement where that saves messages', () => {
    const names = Object.fromEntries(Array.from({ length: 1000 }, (_, k) => [`tensor${k}`, dense([k, k])]));
    for (const announcesApart of [false, true]) {
      const pair = fakePair({ announcesApart });
      exchange(pair, 1, names);
      const cost = costOf(pair, () => expect(exchange(pair, 2, names)).toEqual(Object.values(names).map(plain)));
      expect(cost).toEqual(announcesApart ? { messages: 2, writes: 1000, immediates: 0 } : { messages: 1, writes: 1000, immediates: 1000 });
      expect(costOf(pair, () => exchange(pair, 3, { tensor0: dense([1, 1]) }))).toEqual({ messages: 1, writes: 1, immediates: 1 });
    }
  });

  it('answers a fused request of N slots with N writes and one immediate', () => {
    const pair = fakePair();
    const keys = Array.from({ length: 20 }, (_, k) => pair.key(`slot${k}`));
    for (let stepId = 1; stepId <= 3; stepId++) {
      const step = pair.a.core.beginStep(stepId);
      let slots: unknown;
      const cost = costOf(pair, () => {
        pair.b.tensors.recvFused(stepId, keys, {
          receive: (outcomes) => (slots = outcomes.map((each) => ('value' in each ? plain(each.value) : each.cause.code))),
          fail: () => undefined,
        });
        keys.forEach((key, k) => step.send(key, stepId === 3 && k === 7 ? undefined : dense([k, stepId])));
      });
      expect(slots).toEqual(keys.map((_, k) => (stepId === 3 && k === 7 ? undefined : plain(dense([k, stepId])))));
      // The status of slots goes along: metadata the first time, a dead one in the third step.
      expect(cost).toEqual({ messages: [3, 1, 2][stepId - 1], writes: stepId === 3 ? 19 : 20, immediates: 1 });
    }
  });

  it('goes on around 2^32', () => {
    const pair = fakePair({ firstRequest: 0xfffffffd });
    for (let stepId = 1; stepId <= 6; stepId++) {
      const values = Object.fromEntries(Array.from({ length: 5 }, (_, k) => [`t${k}`, dense([stepId, k])]));
      expect(exchange(pair, stepId, values)).toEqual(Object.values(values).map(plain));
    }
    // One index stays taken: the others go around it.
    const held = recv(pair, 1000, 'never');
    const standing = fakePair({ firstRequest: 0xfffffffe });
    exchange(standing, 1, { x: dense([1]) });
    standing.b.tensors.stand(standing.key('x'), 2, 8);
    for (let stepId = 2; stepId < 40; stepId++)
      expect(exchange(standing, stepId, { x: dense([stepId]) })).toEqual([plain(dense([stepId]))]);
    expect(held.told).toEqual([]);
  });

  it('keeps the destination of a cancelled request to itself until the sender has said that it will not write', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense([1, 1]), y: dense([2, 2]) });
    const step = pair.a.core.beginStep(2);
    const x = recv(pair, 2, 'x');
    pair.b.endTurn();
    pair.b.connection.deliver();
    step.send(pair.key('x'), dense([6, 6]));
    // The write is under way when the receiver loses interest.
    pair.a.endTurn();
    x.cancel();
    const y = recv(pair, 2, 'y');
    step.send(pair.key('y'), dense([7, 7]));
    expect(pair.b.tensors.unanswered.here).toBe(2);
    pair.settle();
    expect([x.told, y.told]).toEqual([[], [plain(dense([7, 7]))]]);
    expect(plain(y.values[0])).toEqual(plain(dense([7, 7])));
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
    expect(pair.b.memory.usage.inUse).toBe(64);
  });

  it('takes back what has not left when a request is cancelled, wherever it is', () => {
    const pair = fakePair();
    let released = 0;
    const value = (): TensorValue => ({ ...dense([1, 1]), release: () => released++ });
    const step = pair.a.core.beginStep(1);
    const offered = recv(pair, 1, 'x');
    step.send(pair.key('x'), value());
    for (const side of [pair.b, pair.a]) {
      side.endTurn();
      side.connection.deliver();
    }
    // The sender waits for a destination.
    offered.cancel();
    pair.settle();
    const parked = recv(pair, 2, 'x');
    const fused = pair.b.tensors.recvFused(1, [pair.key('y'), pair.key('z')], inbox() as never);
    pair.settle();
    step.send(pair.key('y'), value());
    parked.cancel();
    fused();
    pair.settle();
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
    expect(pair.a.tensors.unanswered).toEqual({ here: 0, there: 0 });
    expect([offered.told, parked.told, released]).toEqual([[], [], 2]);
    expect(pair.b.memory.usage.inUse).toBe(0);
  });

  it('fails a request at its time limit, and lets the tensor come late without harm', () => {
    const pair = fakePair({ timeoutMs: 1000 });
    exchange(pair, 1, { x: dense([1, 1]) });
    const step = pair.a.core.beginStep(2);
    const early = recv(pair, 2, 'x');
    pair.clock.advance(600);
    const later = recv(pair, 2, 'y');
    pair.settle();
    pair.clock.advance(400);
    expect([early.told, later.told]).toEqual([['timeout'], []]);
    step.send(pair.key('x'), dense([9, 9]));
    step.send(pair.key('y'), dense([3]));
    pair.settle();
    expect([early.told, later.told]).toEqual([['timeout'], [plain(dense([3]))]]);
    pair.clock.advance(10_000);
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
  });

  it('fails one receive, and no other, when there is no memory for it', () => {
    const pair = fakePair({ bytesMax: 5 << 20 });
    const values = { large: dense(new Float32Array(1 << 21)), small: dense([1]) };
    expect(exchange(pair, 1, values)).toEqual(['out-of-memory', plain(values.small)]);
    expect(exchange(pair, 2, { small: dense([2]) })).toEqual([plain(dense([2]))]);
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
  });

  it('sends no more messages than it has credits for, and the rest when they come back', () => {
    const pair = fakePair();
    const step = pair.a.core.beginStep(1);
    const boxes = Array.from({ length: 3 * creditsMax }, (_, k) => {
      const box = recv(pair, 1, `x${k}`);
      pair.b.endTurn();
      return box;
    });
    // The first was hello.
    expect(pair.b.connection.sent.messages).toBe(creditsMax);
    boxes.forEach((_, k) => step.send(pair.key(`x${k}`), dense([k])));
    pair.settle();
    expect(boxes.map(({ told }) => told)).toEqual(boxes.map((_, k) => [plain(dense([k]))]));
    expect(pair.a.tensors.counters.creditMessagesSent + pair.b.tensors.counters.creditMessagesSent).toBeLessThan(6);
  });

  it('forgets the oldest names beyond its bound, at the cost of a first request', () => {
    const pair = fakePair({ limits: { namesMax: 4 } });
    for (let stepId = 1; stepId <= 3; stepId++) {
      const values = Object.fromEntries(Array.from({ length: 7 }, (_, k) => [`n${k}`, dense([k, stepId])]));
      expect(exchange(pair, stepId, values)).toEqual(Object.values(values).map(plain));
    }
    expect(pair.b.tensors.counters.rerequests).toBe(21);
  });

  it('forgets no name that a fused request has found already', () => {
    const pair = fakePair({ limits: { namesMax: 4 } });
    const values = (stepId: number) => Object.fromEntries(Array.from({ length: 4 }, (_, k) => [`n${k}`, dense([k, stepId])]));
    expect(exchange(pair, 1, values(1))).toEqual(Object.values(values(1)).map(plain));
    // The oldest is the first of them, and there is no place for the second.
    for (const names of [
      ['n0', 'm'],
      ['l0', 'm', 'n3'],
    ]) {
      const step = pair.a.core.beginStep(names.length);
      let told: unknown;
      pair.b.tensors.recvFused(names.length, names.map(pair.key), {
        receive: (slots) => (told = slots.map((slot) => ('value' in slot ? plain(slot.value) : slot.cause.code))),
        fail: ({ code }) => (told = code),
      });
      names.forEach((name, k) => step.send(pair.key(name), dense([k, 7])));
      pair.settle();
      expect(told).toEqual(names.map((_, k) => plain(dense([k, 7]))));
    }
    let cause: unknown;
    const tooMany = ['a', 'b', 'c', 'd', 'e'].map(pair.key);
    pair.b.tensors.recvFused(9, tooMany, { receive: () => undefined, fail: ({ code }) => (cause = code) });
    expect(cause).toBe('usage');
    expect(exchange(pair, 10, values(10))).toEqual(Object.values(values(10)).map(plain));
  });

  it('loses nothing of others when the sender is lost, and uses nothing again that it may still write to', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense([1, 1]) });
    const kept = recv(pair, 2, 'x');
    const step = pair.a.core.beginStep(2);
    step.send(pair.key('x'), dense([5, 5]));
    pair.settle();
    const waiting = recv(pair, 2, 'y');
    pair.b.connection.lose(new ShoalError('peer-lost', 'gone'));
    const late = recv(pair, 3, 'x');
    expect([kept.told, waiting.told, late.told]).toEqual([[plain(dense([5, 5]))], ['peer-lost'], ['peer-lost']]);
    expect(plain(kept.values[0])).toEqual(plain(dense([5, 5])));
    expect(pair.b.memory.usage.bytes).toBe(0);
  });
});

describe('a standing request', () => {
  it('costs one write per step, and a message each few steps', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense([0, 0]) });
    const standing = pair.b.tensors.stand(pair.key('x'), 2, 8);
    pair.settle();
    const cost = costOf(pair, () => {
      for (let stepId = 2; stepId < 66; stepId++)
        expect(exchange(pair, stepId, { x: dense([stepId, 1]) })).toEqual([plain(dense([stepId, 1]))]);
    });
    expect(cost).toEqual({ messages: 16, writes: 64, immediates: 64 });
    standing.stop();
    pair.settle();
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
    expect(pair.b.memory.usage.inUse).toBe(0);
    expect(exchange(pair, 66, { x: dense([5, 5]) })).toEqual([plain(dense([5, 5]))]);
  });

  it('brings the tensor before it is asked for', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense([0]) });
    pair.b.tensors.stand(pair.key('x'), 2, 4);
    pair.settle();
    pair.a.core.beginStep(2).send(pair.key('x'), dense([2]));
    pair.settle();
    expect(recv(pair, 2, 'x').told).toEqual([plain(dense([2]))]);
  });

  it('takes other metadata, dead tensors, steps without it and steps that nobody reads', () => {
    const pair = fakePair();
    pair.b.tensors.stand(pair.key('x'), 1, 4);
    for (let stepId = 1; stepId < 60; stepId++) {
      const step = pair.a.core.beginStep(stepId);
      const kind = stepId % 5;
      const box = kind === 4 ? undefined : recv(pair, stepId, 'x');
      const value =
        kind === 0 ? undefined : kind === 1 ? strings('x'.repeat(stepId * 20)) : dense(new Float32Array(stepId * kind).fill(stepId));
      if (kind !== 3) step.send(pair.key('x'), value);
      pair.settle();
      pair.a.core.endStep(stepId);
      pair.settle();
      expect(box?.told).toEqual(kind === 4 ? undefined : kind === 3 ? ['aborted'] : [plain(value)]);
      box?.values[0]?.release?.();
      pair.b.tensors.endStep(stepId);
    }
    expect(pair.b.memory.usage.inUse).toBeLessThan(4 * 20_000);
  });

  it.each(['asked for', 'on its way'])('tells who waits when what has come is no tensor, asked for when it was %s', (when) => {
    const pair = fakePair();
    exchange(pair, 1, { x: strings('abc') });
    pair.b.tensors.stand(pair.key('x'), 2, 4);
    pair.settle();
    const early = when === 'asked for' ? recv(pair, 2, 'x') : undefined;
    pair.a.core.beginStep(2).send(pair.key('x'), strings('xyz'));
    pair.a.endTurn();
    const written = pair.a.connection.posted.find((each) => each.kind === 'write')!;
    const { region, offset, bytes } = written.source;
    new Uint8Array(region.buffer, offset, bytes).fill(0xff);
    if (early === undefined) pair.settle();
    else expect(() => pair.settle()).toThrow(expect.objectContaining({ code: 'protocol' }));
    expect((early ?? recv(pair, 2, 'x')).told).toEqual(['protocol']);
  });

  it('ends with its connection, and refuses what it cannot be', () => {
    const pair = fakePair();
    expect(() => pair.b.tensors.stand(pair.key('x'), 1, 0)).toThrow(/1 to 1024 steps/);
    pair.b.tensors.stand(pair.key('x'), 1, 2);
    expect(() => pair.b.tensors.stand(pair.key('x'), 1, 2)).toThrow(/a standing request already/);
    const waiting = recv(pair, 1, 'x');
    pair.b.connection.lose(new ShoalError('peer-lost', 'gone'));
    expect(waiting.told).toEqual(['peer-lost']);
    expect(() => pair.b.tensors.stand(pair.key('y'), 1, 2)).toThrow('gone');
  });
});

describe('control messages from outside', () => {
  const message = (...records: ((writer: ByteWriter) => void)[]): Uint8Array => {
    const writer = new ByteWriter(64);
    writer.u8(protocolVersion);
    writer.u8(0);
    writer.u16(0);
    for (const record of records) record(writer);
    return Uint8Array.from(writer.bytes);
  };
  const numbers =
    (type: number, ...values: number[]) =>
    (writer: ByteWriter): void => {
      writer.u8(type);
      for (const value of values) writer.u32(value);
    };
  const to = (side: FakeSide, bytes: Uint8Array) => (): void => side.connection.handlers.onMessage(bytes);
  const name =
    (index: number, text = '/job:worker/task:0/device:CPU:0;0000000000000001;/job:worker/task:1/device:CPU:0;x') =>
    (writer: ByteWriter): void => {
      writer.u8(RecordType.Name);
      writer.u32(index);
      writer.text(text);
    };
  const region =
    (rkey: number, bytes: number) =>
    (writer: ByteWriter): void => {
      writer.u8(RecordType.Region);
      writer.u32(rkey);
      writer.varint(bytes);
      writer.text('');
    };
  const request =
    (index: number, tensor: number, [rkey, offset, bytes]: number[], metadata = [255]) =>
    (writer: ByteWriter): void => {
      writer.u8(RecordType.Request);
      writer.u32(index);
      writer.varint(1);
      writer.u32(tensor);
      writer.varint(0);
      writer.varint(0);
      writer.u32(rkey);
      if (rkey !== 0) {
        writer.varint(offset);
        writer.varint(bytes);
      }
      for (const byte of metadata) writer.u8(byte);
    };

  const fused =
    (index: number, ...tensors: number[]) =>
    (writer: ByteWriter): void => {
      writer.u8(RecordType.FusedRequest);
      writer.u32(index);
      writer.varint(1);
      writer.u16(tensors.length);
      for (const tensor of tensors) {
        writer.u32(tensor);
        writer.varint(0);
        writer.varint(0);
        writer.u32(0);
        writer.u8(255);
      }
    };
  const named = (from: string, to: string): string =>
    `/job:worker/task:${from}/device:CPU:0;0000000000000001;/job:worker/task:${to}/device:CPU:0`;

  it.each([
    ['another version', () => Uint8Array.of(9, 0, 0, 0)],
    ['flags that are not known', () => Uint8Array.of(protocolVersion, 1, 0, 0)],
    ['less than a header', () => Uint8Array.of(protocolVersion, 0)],
    ['credits that were not given', () => Uint8Array.of(protocolVersion, 0, 9, 0)],
    ['a type that there is not', () => message(numbers(200))],
    ['half a record', () => message(numbers(RecordType.Request, 1))],
    ['a tensor that was not named', () => message(request(1, 77, [0]))],
    ['a region that was not told', () => message(name(0), request(1, 0, [5, 0, 8]))],
    ['a destination behind the end of its region', () => message(name(0), region(5, 100), request(1, 0, [5, 96, 8]))],
    [
      'a destination whose end is beyond all numbers',
      () => message(name(0), region(5, 100), request(1, 0, [5, Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER])),
    ],
    ['a dtype code that no dtype has', () => message(name(0), request(1, 0, [0], [77, 0, 4]))],
    ['a shape and bytes that disagree', () => message(name(0), request(1, 0, [0], [1, 1, 2, 12]))],
    ['more dimensions than there are', () => message(name(0), request(1, 0, [0], [1, 33]))],
    ['a number beyond 2^53', () => message(name(0), request(1, 0, [0], [1, 1, 255, 255, 255, 255, 255, 255, 255, 127]))],
    ['a name of 64 KiB', () => message(name(0, 'x'.repeat(65_535)))],
    ['a name that is no key', () => message(name(0, 'x'))],
    [
      'a number of a frame that keys cannot hold',
      () =>
        message(name(0), (writer) => {
          writer.u8(RecordType.Request);
          writer.u32(1);
          writer.varint(1);
          writer.u32(0);
          writer.varint(1e15);
          writer.varint(0);
        }),
    ],
    ['a request twice', () => message(name(0), request(1, 0, [0]), request(1, 0, [0]))],
    ['a fused request of several receivers', () => message(name(0), name(1, `${named('0', '2')};x`), fused(1, 0, 1))],
    ['a fused request of several senders', () => message(name(0), name(1, `${named('1', '1')};x`), fused(1, 0, 1))],
    ['a re-request of nothing', () => message(numbers(RecordType.Rerequest, 1, 0))],
    ['a renewal of nothing', () => message((writer) => (writer.u8(RecordType.Renew), writer.u32(1), writer.u16(1)))],
    [
      'hello twice',
      () =>
        message(
          (writer) => (writer.u8(RecordType.Hello), writer.u64(1n), writer.text('x'), writer.u32(0), writer.text(''), writer.varint(0)),
        ),
    ],
    ['an answer to nothing', () => message(numbers(RecordType.Dead, 1))],
    ['an answer to nothing, written', () => message((writer) => (writer.u8(RecordType.Done), writer.u16(1), writer.u32(9)))],
    ['a cancellation that nobody asked for', () => message(numbers(RecordType.Cancelled, 1))],
  ])('%s ends the connection with `protocol`', (_, bytes) => {
    const pair = fakePair();
    expect(to(pair.a, bytes())).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  it('an immediate for nothing ends the connection with `protocol`', () => {
    expect(() => fakePair().b.connection.handlers.onImmediate(3)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  it('an answer that says the tensor is there before anything is known of it ends the connection with `protocol`', () => {
    const pair = fakePair();
    recv(pair, 1, 'x');
    pair.settle();
    expect(() => pair.b.connection.handlers.onImmediate(0)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  it('a tensor that is said to fit and does not ends the connection with `protocol`', () => {
    const pair = fakePair();
    exchange(pair, 1, { x: dense([1]) });
    recv(pair, 2, 'x');
    const larger = message((writer) => {
      writer.u8(RecordType.Metadata);
      writer.u32(1);
      writer.u8(1);
      writeMetadata(writer, { dtype: 'float32', shape: [1000], bytes: 4000 });
    });
    expect(to(pair.b, larger)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });
});
