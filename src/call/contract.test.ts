/** Ranks compare everything in which calls can differ. */
import { describe, expect, it } from 'vitest';
import { contractBytes } from '../collectives/control-block.ts';
import { callKey, decodeContract, encodeContract, type CollectiveCall } from './contract.ts';

const gather: CollectiveCall = { kind: 'all-gather', dtype: 'float32', count: 1000 };

function encoded(call: CollectiveCall, options = { strict: false }): string {
  const bytes = new Uint8Array(contractBytes);
  encodeContract(call, 7, bytes, options);
  return Buffer.from(bytes).toString('hex');
}

describe('the contract of a call', () => {
  it('keeps its bytes, in memory that held others', () => {
    const bytes = new Uint8Array(contractBytes).fill(255);
    encodeContract({ kind: 'reduce', dtype: 'float32', op: 'sum', count: 2 ** 33 + 7, root: 3, name: 'a' }, 7, bytes, { strict: false });
    expect(Buffer.from(bytes).toString('hex')).toBe('08000000020001000700000002000000030000001b4f72c9873f1542');
    encodeContract({ kind: 'barrier', dtype: 'uint8', count: 0 }, 2 ** 32 - 1, bytes, { strict: false });
    expect(Buffer.from(bytes).toString('hex')).toBe('0000000008ff0a000000000000000000ffffffff0000000000000000');
  });

  it('differs for 20,000 different lists of counts', () => {
    const contracts = new Set<string>();
    for (let first = 0; first < 20_000; first++) contracts.add(encoded({ ...gather, count: 20_000, counts: [first, 20_000 - first] }));
    expect(contracts.size).toBe(20_000);
  });

  it('holds counts beyond 32 bits, and roots beyond 16, as they are', () => {
    for (const count of [0, 1, 2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1]) {
      for (const root of [undefined, 0, 70_000]) {
        const bytes = new Uint8Array(contractBytes);
        encodeContract({ kind: 'broadcast', dtype: 'int8', count, root }, 3, bytes, { strict: false });
        expect(decodeContract(bytes)).toEqual({
          kind: 'broadcast',
          dtype: 'int8',
          sequence: 3,
          count,
          ...(root === undefined ? {} : { root }),
        });
      }
    }
  });

  it('tells names, lists and sites apart, whatever they look like together', () => {
    const calls: CollectiveCall[] = [
      gather,
      { ...gather, name: '' },
      { ...gather, name: '[500,500]' },
      { ...gather, counts: [500, 500] },
      { ...gather, counts: [500, 500], name: 'a' },
      { ...gather, splits: [[500, 500]] },
    ];
    expect(new Set(calls.map((call) => encoded(call))).size).toBe(calls.length);
    expect(new Set(calls.map(callKey)).size).toBe(calls.length);
    const sited = ['train.ts:1', 'train.ts:2'].map((site) => ({ ...gather, site }));
    expect(new Set(sited.map((call) => encoded(call))).size).toBe(1);
    expect(new Set(sited.map((call) => encoded(call, { strict: true }))).size).toBe(2);
  });

  it('of an all-to-all has its size', () => {
    const calls = [8, 16].map((count): CollectiveCall => ({ kind: 'all-to-all', dtype: 'float32', count }));
    expect(new Set(calls.map((call) => encoded(call))).size).toBe(2);
  });
});
