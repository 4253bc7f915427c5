import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { withoutStacks } from '../../base/testing/without-stacks.ts';
import { errorCodes, isShoalError, ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import type { TransferEntry } from '../client/client-options.ts';
import { SimulatedCluster } from '../testing/simulated-cluster.ts';
import { encodeControl, Fields, readControl } from './wire-control.ts';
import {
  decodeAnswer,
  decodeResponse,
  decodeRuns,
  encodeFailure,
  encodeResponse,
  encodeRuns,
  KVMessage,
  makeMessage,
  SourceKind,
  TargetKind,
  type Run,
} from './wire.ts';

const notice = { version: 2, refuses: true };
const count = fc.nat({ max: 2 ** 32 - 2 });
const dense = fc.record({
  firstSlot: fc.nat({ max: 2 ** 31 }),
  slots: fc.integer({ min: 1, max: 2 ** 20 }),
  round: count,
  source: fc.constantFrom(SourceKind.region, SourceKind.none),
  target: fc.constantFrom(TargetKind.none, TargetKind.region, TargetKind.inline),
  codec: fc.constant(0),
  sourceRegion: count,
  sourceOffset: fc.maxSafeNat(),
  sourceBytes: fc.maxSafeNat(),
  targetRegion: count,
  targetOffset: fc.maxSafeNat(),
  rows: fc.constant(0),
  nonFinite: fc.boolean(),
});

function outcome(decode: () => unknown): 'taken' | 'refused' {
  try {
    decode();
    return 'taken';
  } catch (error) {
    if (isShoalError(error) && error.code === 'protocol') return 'refused';
    throw error;
  }
}

describe('wire', () => {
  it('keeps its bytes', () => {
    const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
    const [source, target] = [SourceKind.inline, TargetKind.frame];
    const regions = { sourceRegion: 5, targetRegion: 6, sourceOffset: 7, sourceBytes: 8, targetOffset: 9 };
    const run = { firstSlot: 1, slots: 2, round: 3, source, target, codec: 1, nonFinite: true, ...regions, rows: 0 };
    expect(hex(encodeRuns({ batches: 4, optimizer: 5, shortOfCredit: true, runs: [run] }))).toBe(
      '0400000005000000010000000100000002000000030000000203010105000000060000000000000000001c40000000000000204000000000000022400000000000000000',
    );
    expect(hex(encodeResponse(notice, [{ version: 2 ** 40, settled: 7, workers: 3 }]))).toBe(
      '000100000200000000000000000070420700000003000000',
    );
    const [head, text] = encodeFailure(new ShoalError('aborted', 'no é'));
    expect([hex(head), hex(text)]).toEqual([
      `${(1 + errorCodes.indexOf('aborted')).toString(16).padStart(2, '0')}00000000000000`,
      '6e6f20c3a9',
    ]);
  });

  it('gives runs back as they were', () => {
    fc.assert(
      fc.property(
        fc.array(dense, { minLength: 1, maxLength: 20 }),
        count,
        count,
        fc.boolean(),
        (list, batches, optimizer, shortOfCredit) => {
          const runs: Run[] = list.map((run) => (run.source === SourceKind.none ? { ...run, sourceBytes: 0 } : run));
          const transfer = { batches, optimizer, shortOfCredit, runs };
          expect(decodeRuns([encodeRuns(transfer)])).toEqual(transfer);
        },
      ),
    );
  });

  it('gives answers and errors back', () => {
    const states = [
      { version: 7, settled: 3, workers: 2 },
      { version: 2 ** 40, settled: 0, workers: 0 },
    ];
    expect(decodeResponse([encodeResponse(notice, states)], 2)).toEqual(states);
    expect(decodeAnswer([encodeResponse(notice, states)])).toEqual(notice);
    expect(decodeAnswer(encodeFailure(new ShoalError('mismatch', 'ä')))).toMatchObject({ code: 'mismatch', message: 'ä' });
    expect(outcome(() => decodeResponse([encodeResponse(notice, states)], 3))).toBe('refused');
  });

  it('refuses sources outside their message', () => {
    const run = { firstSlot: 0, slots: 1, round: 1, target: 0, codec: 0, targetRegion: 0, targetOffset: 0, rows: 0, nonFinite: false };
    const inline = { ...run, source: SourceKind.inline, sourceRegion: 1, sourceOffset: 8, sourceBytes: 8 };
    const table = encodeRuns({ batches: 1, optimizer: 0, shortOfCredit: false, runs: [inline] });
    expect(outcome(() => decodeRuns([table, new Uint8Array(16)]))).toBe('taken');
    expect(outcome(() => decodeRuns([table, new Uint8Array(15)]))).toBe('refused');
    expect(outcome(() => decodeRuns([table]))).toBe('refused');
  });

  /** Inputs within CI's budget; FUZZ_INPUTS=10000000 as for packets of messages. */
  const inputs = Number(process.env.FUZZ_INPUTS ?? 1_000_000);

  it(`survives ${inputs} damaged tables, answers and objects`, { timeout: 600_000 + inputs / 20 }, () => {
    const random = seededRandom(77);
    const run = { firstSlot: 3, slots: 2, round: 1, target: 1, codec: 0, targetRegion: 4, targetOffset: 64, rows: 0, nonFinite: false };
    const runs: Run[] = [
      { ...run, source: SourceKind.inline, sourceRegion: 1, sourceOffset: 0, sourceBytes: 32 },
      { ...run, source: SourceKind.region, sourceRegion: 9, sourceOffset: 128, sourceBytes: 32 },
      { ...run, slots: 1, source: SourceKind.rows, sourceRegion: 1, sourceOffset: 32, sourceBytes: 24, rows: 2 },
    ];
    const tables = [
      encodeRuns({ batches: 2, optimizer: 1, shortOfCredit: false, runs }),
      encodeResponse(notice, [{ version: 1, settled: 1, workers: 1 }]),
    ];
    const text = encodeControl({ batch: [['a', 1, [4], [0, 4, 0]]], known: 3, text: 'x', flag: true });
    const seen = { taken: 0, refused: 0 };
    withoutStacks();
    for (let k = 0; k < inputs; k++) {
      const [table, response] = tables.map((bytes) => Uint8Array.from(bytes));
      const target = k % 3 === 0 ? table : k % 3 === 1 ? response : Uint8Array.from(text);
      for (let flips = 1 + random.integer(4); flips > 0; flips--) target[random.integer(target.length)] = random.integer(256);
      const cut = random.integer(8) === 0 ? target.subarray(0, random.integer(target.length)) : target;
      if (k % 3 === 0) seen[outcome(() => decodeRuns([cut, new Uint8Array(64)]))]++;
      else if (k % 3 === 1) seen[outcome(() => [decodeAnswer([cut, new Uint8Array(3)]), decodeResponse([cut], 1)])]++;
      else seen[outcome(() => [readControl(cut, Fields.declare), readControl(cut, Fields.lookup)])]++;
    }
    // Both happen often: neither is everything damaged nor is anything taken.
    expect(Math.min(seen.taken, seen.refused)).toBeGreaterThan(inputs / 20);
  });

  it('a server takes hostile messages without changing anything for others', async () => {
    const random = seededRandom(5);
    const topology = { workerGroups: 2, workersPerGroup: 1, serverGroups: 1, serversPerGroup: 1, replicas: 1 } as const;
    const cluster = await SimulatedCluster.start({ topology, random });
    const [{ core, values }, { address: hostile }] = cluster.clients;
    const [server] = cluster.servers;
    const first = values.allocate(64);
    await cluster.run<void>((done) => core.init(0, [{ key: 'w', dtype: 'float32', shape: [16], value: first.ref }], done));
    await cluster.run<void>((done) => core.setOptimizer(0, { name: 'sgd', learningRate: 1 }, done));
    const run = {
      firstSlot: 0,
      slots: 1,
      round: 1,
      target: TargetKind.inline,
      codec: 0,
      targetRegion: 1,
      targetOffset: 0,
      rows: 0,
      nonFinite: false,
    };
    const good = encodeRuns({
      batches: 1,
      optimizer: 0,
      shortOfCredit: false,
      runs: [{ ...run, source: SourceKind.inline, sourceRegion: 1, sourceOffset: 0, sourceBytes: 64 }],
    });
    const types = Object.values(KVMessage);
    for (let k = 0; k < 25_000; k++) {
      const table = Uint8Array.from(good);
      // Runs that say what is true, in a place where it is not, and everything else.
      for (let flips = 1 + random.integer(3); flips > 0; flips--) table[random.integer(table.length)] = random.integer(256);
      table[12] ||= 1;
      const type = random.integer(3) === 0 ? types[random.integer(types.length)] : KVMessage.get;
      const source = random.integer(4) === 0 ? BigInt(random.integer(1000)) : hostile;
      const frames = random.integer(5) === 0 ? [table] : [table, new Uint8Array(random.integer(80))];
      const msg = makeMessage({ source, destination: 0n, type, request: 1_000_000 + k, epoch: 1 }, frames);
      server.core.receive(msg);
    }
    expect(cluster.faults.every(({ error }) => isShoalError(error))).toBe(true);
    expect(cluster.faults.length).toBeGreaterThan(500);
    await cluster.settle();
    const push = values.allocate(64);
    new Float32Array(push.view.buffer).fill(3);
    const entries: TransferEntry[] = [{ key: 'w', push: push.ref, out: push.ref }];
    await cluster.run<void>((done) => core.transfer(0, { entries, priority: 0 }, done));
    expect([...new Float32Array(push.view.buffer)]).toEqual(Array.from({ length: 16 }, () => 3));
  });
});
