import { describe, expect, it } from 'vitest';
import { balancedTree } from '../memory/kernels.ts';
import { canonicalTree, formatAssociation, postfix } from './association.ts';
import { grid, oneHost, separateHosts } from './topology.ts';

describe('canonicalTree', () => {
  it('is the balanced tree when hosts do not matter', () => {
    for (let n = 1; n <= 33; n++) {
      expect(postfix(canonicalTree(oneHost(n)), (rank) => rank)).toEqual(balancedTree(n));
      expect(postfix(canonicalTree(separateHosts(n)), (rank) => rank)).toEqual(balancedTree(n));
    }
  });

  it('reduces hosts first', () => {
    expect(formatAssociation(canonicalTree(oneHost(6)))).toBe('(((0 1) (2 3)) (4 5))');
    expect(formatAssociation(canonicalTree(grid(2, 3)))).toBe('(((0 1) 2) ((3 4) 5))');
    expect(formatAssociation(canonicalTree({ hosts: [[0, 3, 4], [1], [2, 5]] }))).toBe('((((0 3) 4) 1) (2 5))');
  });

  it('is one tree, flat or hierarchical, for hosts of equal powers of two', () => {
    expect(canonicalTree(grid(4, 4))).toEqual(canonicalTree(oneHost(16)));
  });

  it('numbers sources as asked', () => {
    expect(postfix(canonicalTree(oneHost(3)), (rank) => 2 - rank)).toEqual([2, 1, -1, 0, -1]);
  });
});
