import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { StagedValues } from './staged-values.ts';
import type { ValueBlock } from '../../ps/protocol/value-space.ts';

function stagedValues(expectedBytes = 8): { staged: StagedValues; freed: number[] } {
  const freed: number[] = [];
  let next = 0;
  const allocate = (bytes: number): ValueBlock => {
    const number = next++;
    return { ref: { region: number, offset: 0, bytes }, view: new Uint8Array(bytes), free: () => freed.push(number) };
  };
  return { staged: new StagedValues({ allocate }, expectedBytes), freed };
}

describe('StagedValues', () => {
  it('copies in, copies results out, and gives everything back', () => {
    const { staged, freed } = stagedValues();
    expect(staged.empty).toBe(true);
    const block = staged.copyIn(Uint8Array.of(1, 2), 1);
    expect([...block.view]).toEqual([1, 2]);
    const out = new Uint8Array(2);
    staged.result(block, out, out);
    block.view.set([3, 4]);
    staged.copyOut();
    staged.free();
    expect([[...out], freed, staged.empty]).toEqual([[3, 4], [0], false]);
  });

  it.each(['mismatch', 'usage', 'unsupported'] as const)('gives back after %s: a server has answered', (code) => {
    const { staged, freed } = stagedValues();
    staged.take(8, 8);
    staged.free(new ShoalError(code, 'refused'));
    expect(freed).toEqual([0]);
  });

  it.each(['timeout', 'peer-lost', 'aborted', 'closed'] as const)('keeps after %s: a server may still write there', (code) => {
    const { staged, freed } = stagedValues();
    staged.take(8, 8);
    staged.free(new ShoalError(code, 'no answer'));
    expect(freed).toEqual([]);
  });

  it('puts small values side by side into one block, each aligned, and large ones into blocks of their own', () => {
    const { staged, freed } = stagedValues(100 * 1024 + 8);
    const places = Array.from({ length: 100 }, () => staged.take(1024, 4).ref);
    expect(places).toEqual(places.map((_, k) => ({ region: 0, offset: 1024 * k, bytes: 1024 })));
    expect([staged.take(3, 1).ref.offset, staged.take(2, 2).ref.offset]).toEqual([102_400, 102_404]);
    expect(staged.take(2 ** 20, 4).ref).toEqual({ region: 1, offset: 0, bytes: 2 ** 20 });
    staged.free();
    expect(freed).toEqual([0, 1]);
  });
});
