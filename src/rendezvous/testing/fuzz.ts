/** Hostile control messages: real traffic of two workers in which messages and immediates are changed, cut, repeated, mixed and invented. */
import { messageOf, ShoalError } from '../../base/errors.ts';
import { seededRandom, type Random } from '../../base/random.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { FakeConnection } from './fake-connection.ts';
import { fakePair } from './fake-pair.ts';

export interface FuzzCount {
  /** Changed inputs that were delivered. */
  inputs: number;
  /** Refusals; what comes after one that was meant well may be refused as well. */
  refused: number;
}

/** Delivers at least `inputs` changed messages and immediates. @throws Error when anything but `protocol` comes of one, when a request is
 *  told its end twice or never, or when memory of others changes. */
export function fuzz(random: Random, inputs: number): FuzzCount {
  const count: FuzzCount = { inputs: 0, refused: 0 };
  while (count.inputs < inputs) playSeed(random.integer(2 ** 31), count);
  return count;
}

/** One connection of them, by the number that its failure names. */
export function playSeed(seed: number, count: FuzzCount = { inputs: 0, refused: 0 }): void {
  try {
    play(seededRandom(seed), count);
  } catch (thrown) {
    throw new Error(`connection ${seed}: ${messageOf(thrown)}`, { cause: thrown });
  }
}

const inPieces = { dtype: 'uint8', shape: [150_000], bytes: 150_000 } as const;

/** One connection, until it is refused or has had enough. */
function play(random: Random, count: FuzzCount): void {
  const pair = fakePair({
    slabBytes: 65_536,
    announcesApart: random.integer(2) === 0,
    firstRequest: random.integer(2) === 0 ? 0 : 0xfffffff0,
  });
  // The victim is the side that is lied to: a sender that is will write wherever it is told to, in memory of the liar.
  const victim = random.integer(2) === 0 ? pair.a : pair.b;
  const ends: number[] = [];
  const kept: Uint8Array[] = [];
  const values: TensorValue[] = [
    { dtype: 'float32', shape: [random.integer(100)], data: new Float32Array(0) },
    { dtype: 'string', shape: [2], data: ['a', 'b'.repeat(random.integer(200))] },
    { dtype: 'int32', shape: [0], data: new Int32Array(0) },
  ].map((value) => (value.dtype === 'float32' ? { ...value, data: new Float32Array(value.shape[0]) } : value) as TensorValue);
  const guard = pair.b.memory.allocate(4096);
  const guarded = new Uint8Array(guard.registered.region.buffer, guard.offset, guard.bytes).fill(0xa5);
  const waiter = () => {
    const index = ends.push(0) - 1;
    return { receive: () => void ends[index]++, fail: () => void ends[index]++ };
  };
  for (let stepId = 1; stepId <= 6; stepId++) {
    const step = pair.a.core.beginStep(stepId);
    pair.b.tensors.recv(stepId, pair.key('pieces'), waiter(), { pieceBytes: 65_536, expected: inPieces, receive() {} });
    const cancels = [0, 1, 2].map((k) => pair.b.tensors.recv(stepId, pair.key(`k${k}`), waiter()));
    pair.b.tensors.recvFused(
      stepId,
      [3, 4].map((k) => pair.key(`k${k}`)),
      waiter(),
    );
    if (stepId === 2) pair.b.tensors.stand(pair.key('standing'), 3, 2);
    if (stepId > 2) pair.b.tensors.recv(stepId, pair.key('standing'), waiter());
    for (const k of [0, 1, 2, 3, 4]) step.send(pair.key(`k${k}`), random.integer(4) === 0 ? undefined : values[(k + stepId) % 3]);
    step.send(pair.key('standing'), values[0]);
    step.send(pair.key('pieces'), { ...inPieces, data: new Uint8Array(inPieces.bytes) });
    if (random.integer(3) === 0) {
      cancels[0]();
      // One that failed at once was told.
      ends[ends.length - (stepId > 2 ? 5 : 4)] ||= 1;
    }
    for (let turn = 0; turn < 4; turn++) {
      for (const { connection, endTurn } of [pair.b, pair.a]) {
        endTurn();
        deliver(random, connection, kept, connection.other === victim.connection ? count : undefined);
      }
    }
    pair.a.core.endStep(stepId);
  }
  for (const { connection } of [pair.a, pair.b]) connection.lose(new ShoalError('protocol', 'refused'));
  const wrong = ends.findIndex((told) => told !== 1);
  if (wrong >= 0) throw new Error(`request ${wrong} was told its end ${ends[wrong]} times`);
  if (victim === pair.b && guarded.some((byte) => byte !== 0xa5)) throw new Error('memory of another request was written to');
}

function deliver(random: Random, connection: FakeConnection, kept: Uint8Array[], count: FuzzCount | undefined): void {
  while (connection.posted.length > 0) {
    const next = connection.posted[0];
    if (next.kind === 'message') kept.push(next.message);
    // A connection ends with the first that is refused. Here it goes on: more states are reached, and none may do harm.
    for (let more = count !== undefined && random.integer(3) === 0 ? 1 + random.integer(40) : 0; more > 0; more--) {
      count!.inputs++;
      refused(count, () => {
        if (next.kind === 'message') connection.other.handlers.onMessage(changed(random, next.message, kept));
        else connection.other.handlers.onImmediate(random.integer(random.integer(2) === 0 ? 20 : 2 ** 32));
      });
    }
    refused(count, () => connection.deliver());
  }
}

function refused(count: FuzzCount | undefined, input: () => void): void {
  try {
    input();
  } catch (thrown) {
    if (!(thrown instanceof ShoalError) || thrown.code !== 'protocol') throw thrown;
    if (count !== undefined) count.refused++;
  }
}

function changed(random: Random, message: Uint8Array, kept: readonly Uint8Array[]): Uint8Array {
  switch (random.integer(5)) {
    case 0: {
      const bytes = Uint8Array.from(message);
      for (let k = random.integer(3); k >= 0; k--) bytes[random.integer(bytes.length)] ^= 1 << random.integer(8);
      return bytes;
    }
    case 1:
      return message.slice(0, random.integer(message.length));
    case 2:
      return kept[random.integer(kept.length)];
    case 3: {
      const other = kept[random.integer(kept.length)];
      return Buffer.concat([message.subarray(0, random.integer(message.length)), other.subarray(random.integer(other.length))]);
    }
    default: {
      const bytes = Uint8Array.from(random.bytes(4 + random.integer(40)));
      bytes.set([1, 0, 0, 0, 1 + random.integer(19)].slice(0, bytes.length));
      return bytes;
    }
  }
}
