/** Tensors in pieces: what is told of each, and what never happens, on a connection that delivers when it is told to. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { ByteWriter } from '../../base/bytes.ts';
import { protocolVersion, RecordType } from '../protocol/records.ts';
import { exchange, fakePair, inbox, type FakePair } from '../testing/fake-pair.ts';
import { stagedTensor } from '../testing/staged-tensor.ts';
import { dense, plain } from './conformance.ts';

describe('a tensor in pieces', () => {
  const pieceBytes = 65_536;
  const five = dense(Float32Array.from({ length: (5 * pieceBytes) / 4 }, (_, k) => k));
  const turn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

  /** `b` asks for `x` in pieces; `a` reads each when the test says so. */
  async function asked(pair: FakePair, value = five) {
    const gates = new Map<number, () => void>();
    const tensor = stagedTensor(value, { turn: (at) => new Promise((resolve) => gates.set(at, resolve)) });
    const told: number[] = [];
    const box = inbox();
    const cancel = pair.b.tensors.recv(1, pair.key('x'), box, {
      pieceBytes,
      expected: { dtype: 'float32', shape: value.shape, bytes: 4 * value.shape[0] },
      receive: (_, at, bytes) => {
        told.push(at / pieceBytes);
        if (at > 0) expect(new Float32Array(bytes.buffer, bytes.byteOffset, 1)[0]).toBe(at / 4);
      },
    });
    pair.settle();
    pair.a.core.beginStep(1).send(pair.key('x'), tensor);
    await turn();
    /** Ends the reading of a piece, and delivers what can be. */
    const read = async (...pieces: number[]): Promise<void> => {
      for (const piece of pieces) gates.get(piece * pieceBytes)!();
      await turn();
      pair.settle();
      await turn();
    };
    return { tensor, told, box, cancel, read, begun: () => tensor.reads.map((at) => at / pieceBytes) };
  }

  it('is on the wire, and told of, while others are read; three at a time, in any order', async () => {
    for (const firstRequest of [0, 0xfffffffd]) {
      const pair = fakePair({ firstRequest });
      const sent = { ...pair.a.connection.sent };
      const { told, box, read, begun, tensor } = await asked(pair);
      expect(begun()).toEqual([0, 1, 2]);
      await read(1);
      expect([told, begun(), box.told]).toEqual([[1], [0, 1, 2, 3], []]);
      await read(3, 2);
      expect([told, begun()]).toEqual([
        [1, 3, 2],
        [0, 1, 2, 3, 4],
      ]);
      await read(4);
      expect([told, tensor.released]).toEqual([[1, 3, 2], []]);
      await read(0);
      expect([told, box.told, tensor.released]).toEqual([[1, 3, 2], [plain(five)], [undefined]]);
      const { messages, writes, immediates } = pair.a.connection.sent;
      // The last piece is not told apart from others: four indices are for four of five. What is read last tells of all.
      expect([messages - sent.messages, writes - sent.writes, immediates - sent.immediates]).toEqual([0, 5, 4]);
      expect([pair.a.tensors.unanswered, pair.b.tensors.unanswered]).toEqual([
        { here: 0, there: 0 },
        { here: 0, there: 0 },
      ]);
      expect(pair.a.memory.usage.inUse).toBe(0);
      expect(exchange(pair, 2, { y: dense([1]) })).toEqual([plain(dense([1]))]);
    }
  });

  it('is not written any more when its request is cancelled, and read no further', async () => {
    const pair = fakePair();
    const { box, cancel, read, begun, tensor } = await asked(pair);
    await read(0);
    const { writes } = pair.a.connection.sent;
    cancel();
    pair.settle();
    expect(pair.b.tensors.unanswered).toEqual({ here: 0, there: 0 });
    await read(1, 2, 3);
    expect([pair.a.connection.sent.writes, begun(), box.told, tensor.released]).toEqual([writes, [0, 1, 2, 3], [], [undefined]]);
    expect([pair.a.memory.usage.inUse, pair.b.memory.usage.inUse]).toEqual([0, 0]);
  });

  it('fails when a piece cannot be read, and at its time limit, and with its connection, each once', async () => {
    const broken = fakePair();
    const box = inbox();
    const expected = { dtype: 'float32', shape: five.shape, bytes: 5 * pieceBytes } as const;
    broken.b.tensors.recv(1, broken.key('x'), box, { pieceBytes, expected, receive() {} });
    broken.a.core.beginStep(1).send(broken.key('x'), stagedTensor(five, { fails: new ShoalError('system', 'lost') }));
    broken.settle();
    for (let k = 0; k < 4; k++) await turn();
    broken.settle();
    expect([box.told, broken.b.memory.usage.inUse, broken.b.tensors.unanswered.here]).toEqual([['system'], 0, 0]);
    const late = fakePair({ timeoutMs: 1000 });
    const first = await asked(late);
    await first.read(0);
    late.clock.advance(1000);
    late.settle();
    await first.read(1, 2, 3);
    expect([first.box.told, first.told, late.b.tensors.unanswered.here, late.b.memory.usage.inUse]).toEqual([['timeout'], [0], 0, 0]);
    const lost = fakePair();
    const second = await asked(lost);
    await second.read(0);
    for (const { connection } of [lost.a, lost.b]) connection.lose(new ShoalError('peer-lost', 'gone'));
    await second.read(1, 2, 3);
    expect([second.box.told, second.told, second.tensor.released]).toMatchObject([['peer-lost'], [0], [{ code: 'peer-lost' }]]);
  });

  it('is refused when its control messages or immediates are not as they must be', async () => {
    const pair = fakePair();
    await asked(pair);
    for (const immediate of [5, 6])
      expect(() => pair.b.connection.handlers.onImmediate(immediate)).toThrow(expect.objectContaining({ code: 'protocol' }));
    for (const type of [RecordType.Dead, RecordType.Error, RecordType.Cancelled]) {
      const writer = new ByteWriter(64);
      for (const byte of [protocolVersion, 0, 0, 0, type, 1, 0, 0, 0, 0, 0, 0]) writer.u8(byte);
      expect(() => pair.b.connection.handlers.onMessage(Uint8Array.from(writer.bytes))).toThrow(
        expect.objectContaining({ code: 'protocol' }),
      );
    }
    for (const [bytes, count] of [
      [0, 2],
      [1, 2],
      [65_537, 2],
      [2 ** 31, 2],
      [65_536, 0],
      [65_536, 1],
      [65_536, 1025],
    ]) {
      const writer = new ByteWriter(64);
      for (const byte of [protocolVersion, 0, 0, 0, RecordType.RequestInPieces]) writer.u8(byte);
      writer.u32(bytes);
      writer.u16(count);
      expect(() => pair.a.connection.handlers.onMessage(Uint8Array.from(writer.bytes))).toThrow(/a request wants \d+ pieces of \d+ bytes/);
    }
  });
});
