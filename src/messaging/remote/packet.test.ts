/** Packets survive the round trip; nothing a stranger sends does more than throw `protocol`. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { withoutStacks } from '../../base/testing/without-stacks.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { limitsOf } from '../limits.ts';
import { Msg } from '../msg.ts';
import { hostilePacket } from '../testing/hostile-packets.ts';
import {
  decodePacket,
  detachedBytes,
  encodeControl,
  encodeData,
  encodeError,
  encodeGreeting,
  inlineBytes,
  messageCost,
  packetPrefixBytes,
  rebaseSequence,
  refreshCounters,
  type Packet,
} from './packet.ts';

const limits = limitsOf({ frames: 1000 });
const takes = { windowMessages: 4, windowBytes: 5, messageBytes: 6, frames: 7 };
const options = { limits };
const counters = { received: 7, consumed: 5, consumedBytes: 2 ** 40 };
/** Packets are written in two ways: all targets within 32 bits, or not. */
const target = fc.oneof({ weight: 9, arbitrary: fc.integer() }, fc.maxSafeInteger());
const uint64 = fc.bigInt({ min: 0n, max: 0xffffffffffffffffn });

const messages = fc.array(
  fc.record({
    source: uint64,
    destination: uint64,
    type: fc.integer({ min: 0, max: 0xffff }),
    value: target,
    version: target,
    frames: fc.array(
      fc.oneof({ weight: 8, arbitrary: fc.uint8Array({ maxLength: 40 }) }, fc.constant(new Uint8Array(detachedBytes).fill(3))),
      {
        maxLength: 7,
      },
    ),
  }),
  { minLength: 1, maxLength: 9 },
);

interface Fields {
  readonly source: bigint;
  readonly destination: bigint;
  readonly type: number;
  readonly value: number;
  readonly version: number;
  readonly frames: readonly Uint8Array[];
}

function messageOf(fields: Fields): Msg {
  const msg = new Msg(fields.source, fields.destination);
  msg.type = fields.type;
  msg.setTarget(fields.value, fields.version);
  for (const frame of fields.frames) msg.addFrame(frame);
  return msg;
}

function fieldsOf(msg: Msg): Fields {
  const { source, destination, type } = msg;
  return {
    source,
    destination,
    type,
    value: msg.targetValue,
    version: msg.targetVersion,
    frames: msg.frames.map((frame) => Uint8Array.from(frame)),
  };
}

/** Frames as strings, which compare a hundred times faster. */
function frozen(fields: Fields): object {
  return { ...fields, frames: fields.frames.map((frame) => Buffer.from(frame).toString('latin1')) };
}

function encoded(list: readonly Msg[], sequence = 0): Uint8Array[] {
  return encodeData(list, sequence, counters).parts;
}

/** The packet, or undefined when it is refused properly. Any other error fails the test. */
function tryDecode(parts: readonly Uint8Array[]): Packet | undefined {
  try {
    return decodePacket(parts, options);
  } catch (error) {
    if (isShoalError(error) && error.code === 'protocol') return undefined;
    throw error;
  }
}

it('packets keep their bytes', () => {
  const hex = (parts: readonly Uint8Array[]): string => Buffer.concat(parts).toString('hex');
  const msg = messageOf({
    source: 0x0102030405060708n,
    destination: 2n ** 64n - 1n,
    type: 9,
    value: -2,
    version: 5,
    frames: [Uint8Array.of(1, 2, 3)],
  });
  expect(hex(encodeData([msg], 2 ** 40 + 1, counters).parts)).toBe(
    '534d030301000100000000010700000000000500000000000000000000010000090001000807060504030201fffffffffffffffffeffffff05000000030000000102030000000000',
  );
  const wide = messageOf({ source: 1n, destination: 2n, type: 9, value: -(2 ** 40), version: 5, frames: [] });
  expect(hex(encodeData([wide], 3, counters).parts)).toBe(
    '534d03030180030000000000070000000000050000000000000000000001000009000000010000000000000002000000000000000000000000ffffff050000000000000000000000',
  );
  const greeting = { session: 2 ** 40 + 3, knownSession: 0, address: 0x0102030405060708n, ...takes, brief: false };
  expect(hex([encodeGreeting('hello', greeting, counters)])).toBe(
    '534d0301000000000000000007000000000005000000000000000000000100000300000000010000000000000000000008070605040302010400000000000000050000000000000006000000000000000700000000000000',
  );
  expect(hex([encodeControl('credit', counters)])).toBe('534d030400000000000000000700000000000500000000000000000000010000');
  expect(hex([encodeError(new ShoalError('aborted', 'no é'))])).toBe(
    '534d0307020000000000000000000000000000000000000000000000000000006e6f20c3a9',
  );
});

describe('packets', () => {
  it('carry messages unchanged', () => {
    fc.assert(
      fc.property(messages, fc.nat({ max: 2 ** 48 - 1 }), (list, sequence) => {
        const packet = decodePacket(encoded(list.map(messageOf), sequence), options);
        if (packet.kind !== 3) throw new Error('not data');
        expect(packet.messages.map(fieldsOf).map(frozen)).toEqual(list.map(frozen));
        expect(packet.bytes).toEqual(packet.messages.map(messageCost));
        expect(packet).toMatchObject({ ...counters, sequence });
      }),
    );
  });

  it('are no larger than what the package zeromq copies, 128 bytes, for one frame of 64', () => {
    const fields = { source: 1n, destination: 2n ** 64n - 1n, type: 0xffff, frames: [new Uint8Array(64)] };
    const bytesWith = (value: number, version: number): number => {
      const [first] = encoded([messageOf({ ...fields, value, version })]);
      const packet = decodePacket([first], options);
      expect(packet.kind === 3 && packet.messages.map(fieldsOf)).toEqual([{ ...fields, value, version }]);
      return first.byteLength;
    };
    expect(bytesWith(-(2 ** 31), 2 ** 31 - 1)).toBe(128);
    expect(bytesWith(2 ** 31, 0)).toBe(136);
    expect(bytesWith(0, -(2 ** 31) - 1)).toBe(136);
  });

  it('are at most what is reckoned for their messages', () => {
    fc.assert(
      fc.property(messages, (list) => {
        const all = list.map(messageOf);
        const reckoned = all.reduce((sum, msg) => sum + inlineBytes(msg), packetPrefixBytes);
        expect(encoded(all)[0].byteLength).toBeLessThanOrEqual(reckoned);
      }),
    );
  });

  it('of another version are refused, by their version', () => {
    const first = encodeControl('credit', counters);
    first[2] = 1;
    expect(() => decodePacket([first], options)).toThrow(/version 1, here is 3; run the same Shoal everywhere/);
  });

  it('do not copy frames, neither when written nor when read, and align them', () => {
    const large = new Uint8Array(detachedBytes);
    const msg = new Msg(1n, 2n);
    msg.addFrame('odd');
    msg.addFrame(large);
    msg.addFrame('small');
    const parts = encoded([msg]);
    expect(parts[1]).toBe(large);
    const packet = decodePacket(parts, options);
    const received = packet.kind === 3 ? packet.messages[0].frames : [];
    expect(received[1]).toBe(large);
    expect(received[0].buffer).toBe(parts[0].buffer);
    expect([received[0], received[2]].map((frame) => (frame.byteOffset - parts[0].byteOffset) % 8)).toEqual([0, 0]);
  });

  it('of every other kind too', () => {
    const greeting = {
      brief: false,
      ...{ session: 2 ** 52, knownSession: 3, address: 0xffffffffffffffffn },
      ...{ windowMessages: 9, windowBytes: 2 ** 33, messageBytes: 2 ** 34, frames: 65_535 },
    };
    expect(decodePacket([encodeGreeting('hello', greeting, counters)], options)).toEqual({ kind: 1, ...greeting, ...counters });
    const brief = { ...greeting, brief: true };
    expect(decodePacket([encodeGreeting('welcome', brief, counters)], options)).toEqual({ kind: 2, ...brief, ...counters });
    expect(decodePacket([encodeControl('credit', counters)], options)).toEqual({ kind: 4, ...counters });
    expect(decodePacket([encodeControl('goodbye', counters)], options)).toEqual({ kind: 5, ...counters });
    expect(decodePacket([encodeControl('reset', counters)], options)).toEqual({ kind: 6, ...counters });
    const error = decodePacket([encodeError(new ShoalError('config', `näher\n${'x'.repeat(2000)}`))], options);
    expect(error).toMatchObject({ kind: 7, code: 'config', text: expect.stringMatching(/^näher\?x{400,505}$/) });
  });

  it('can be sent again with newer counters and another number', () => {
    const parts = encoded([messageOf({ source: 1n, destination: 2n, type: 3, value: -4, version: 5, frames: [] })], 9);
    const newer = { received: 2 ** 47 + 1, consumed: 2 ** 40 + 2, consumedBytes: 2 ** 52 + 3 };
    refreshCounters(parts[0], newer);
    rebaseSequence(parts[0], 2 ** 33 + 4);
    expect(decodePacket(parts, options)).toMatchObject({ sequence: 2 ** 33 + 4, ...newer });
    refreshCounters(parts[0], counters);
    rebaseSequence(parts[0], 0);
    expect(decodePacket(parts, options)).toMatchObject({ sequence: 0, ...counters });
  });

  it('with pointers are refused where none came with them', () => {
    const shared = new Uint8Array(new SharedArrayBuffer(8));
    const msg = new Msg(1n, 2n);
    msg.addFormatFrame('p', shared);
    const { parts, pointers } = encodeData([msg], 0, counters);
    const packet = decodePacket(parts, { limits, pointers });
    expect(packet.kind === 3 && packet.messages[0].parseFormatFrame('p')[0]).toBe(shared);
    expect(tryDecode(parts)).toBeUndefined();
    expect(() => decodePacket(parts, { limits, pointers: [...pointers, shared] })).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  it('beyond the limits are refused', () => {
    const wide = new Msg();
    for (let k = 0; k < 1001; k++) wide.addFrame('');
    const long = new Msg();
    long.addFrame(new Uint8Array(2000));
    expect(tryDecode(encoded([wide]))).toBeUndefined();
    expect(() => decodePacket(encoded([long]), { limits: limitsOf({ messageBytes: 1000 }) })).toThrow(/at most 1000/);
  });
});

describe('hostile bytes', () => {
  /** Inputs within CI's budget; `SHOAL`-independent so that it needs no setting: FUZZ_INPUTS=10000000 runs ten million. */
  const inputs = Number(process.env.FUZZ_INPUTS ?? 1_000_000);

  it(
    `${inputs} mutated, cut, lengthened and random packets do nothing but throw protocol`,
    () => {
      const seed = Number(process.env.FUZZ_SEED ?? 0x5eed);
      const random = seededRandom(seed);
      const corpus = fc.sample(messages, { numRuns: 60, seed }).map((list) => encoded(list.map(messageOf)));
      corpus.push(
        [encodeGreeting('hello', { ...{ session: 1, knownSession: 2, address: 3n }, ...takes, brief: false }, counters)],
        [encodeControl('credit', counters)],
      );
      corpus.push([encodeError(new ShoalError('auth', 'no'))]);
      let accepted = 0;
      let refused = 0;
      withoutStacks();
      for (let k = 0; k < inputs; k++) {
        const parts = hostilePacket(corpus, random);
        if (tryDecode(parts) === undefined) refused++;
        else accepted++;
      }
      // Both must be reached, or the inputs are not hostile in the right places.
      expect(accepted).toBeGreaterThan(inputs / 1000);
      expect(refused).toBeGreaterThan(inputs / 10);
      expect(accepted + refused).toBe(inputs);
    },
    600_000 + inputs / 20,
  );

  it('frames never reach outside the parts they came in', () => {
    fc.assert(
      fc.property(messages, fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 6 }), (list, edits) => {
        const parts = encoded(list.map(messageOf)).map((part) => Buffer.from(part));
        for (const [at, value] of edits) parts[0][at % parts[0].length] = value;
        const packet = tryDecode(parts);
        for (const frame of packet?.kind === 3 ? packet.messages.flatMap((msg) => msg.frames) : []) {
          // Small buffers share one pool: several parts may lie in the same ArrayBuffer.
          const ends = frame.byteOffset + frame.byteLength;
          const within = parts.some(
            (part) => part.buffer === frame.buffer && part.byteOffset <= frame.byteOffset && ends <= part.byteOffset + part.byteLength,
          );
          expect(within).toBe(true);
        }
      }),
      { numRuns: 2000 },
    );
  });
});
