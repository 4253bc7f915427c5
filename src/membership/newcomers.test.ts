import { expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { HashStore } from '../store/hash-store.ts';
import { encodeJson } from '../base/bytes.ts';
import { newcomersOf } from './newcomers.ts';

const row = (rank: number, size: number): string[] => Array.from({ length: size }, (_, peer) => (peer === rank ? 'self' : 'tcp'));

it('ranks that wait may know others that have come later, whether those wait already or not', async () => {
  const store = new HashStore({ clock: systemClock });
  for (const rank of [0, 1, 2, 3, 4]) await store.set(`info/${rank}`, encodeJson({ rank, hostId: 'here' }));
  const waits = (rank: number, ranges: string): Promise<void> =>
    store.set(`waiting/${rank}`, encodeJson({ hostId: 'here', links: { fabrics: { tcp: ranges }, loadStore: [] } }));
  // Rank 5 has dialled rank 3, and does not wait yet.
  await waits(3, '0-2,4-5');
  await waits(4, '0-3');
  const joined = {
    hosts: [[0, 1, 2]],
    topology: { hosts: [[0], [1], [2]] },
    fabricOf: [0, 1, 2].map((rank) => row(rank, 3)),
    model: undefined,
  };
  expect(await newcomersOf({ joined, reaches: () => true }, store, [0, 1, 2])).toEqual({
    ranks: [3, 4],
    facts: {
      hosts: [[0, 1, 2, 3, 4]],
      topology: { hosts: [[0], [1], [2], [3], [4]] },
      fabricOf: [0, 1, 2, 3, 4].map((rank) => row(rank, 5)),
      model: undefined,
    },
  });
  await store.close();
});
