/** A peer's memory as a rank sees it, from before it is announced to after the peer has gone. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../../../base/errors.ts';
import type { Connection, RemoteRegion } from '../../../fabric/fabric.ts';
import { PeerLink } from './peer-link.ts';

const region: RemoteRegion = { rkey: 2, bytes: 3, handle: '' };

function linkTo(map: Connection['map']): PeerLink {
  const connection = { peer: { world: 'test', rank: 1 }, map } as Connection;
  return new PeerLink(connection, { name: 'test', capabilities: { loadStore: true } }, () => undefined);
}

const mapped = linkTo.bind(undefined, () => ({
  id: 'r',
  bytes: 3,
  buffer: Uint8Array.of(1, 2, 3, 0).buffer,
  share: {} as never,
  close: () => {},
  retire: () => {},
}));

describe("a peer's memory", () => {
  it('is unknown, then mapped, then nothing once the peer has freed it', () => {
    const link = mapped();
    link.withdraw(2); // never announced
    expect([link.knows(2), link.memory(2)]).toEqual([false, undefined]);
    link.announce(2, region);
    expect([link.knows(2), [...(link.memory(2) ?? [])]]).toEqual([true, [1, 2, 3]]);
    link.withdraw(2);
    expect([link.knows(2), link.memory(2)?.length]).toEqual([true, 0]);
  });

  it('is nothing when it is gone before the news of that has come', () => {
    const link = linkTo(() => {
      throw new ShoalError('unsupported', 'the descriptor now names another file');
    });
    link.announce(2, region);
    expect(link.memory(2)?.length).toBe(0);
  });

  it('is nothing once the peer has left, and an error when it was lost', () => {
    const gone = new ShoalError('closed', 'the connection is closed');
    const closed = (): never => {
      throw gone;
    };
    const [left, lost] = [linkTo(closed), linkTo(closed)];
    for (const link of [left, lost]) link.announce(2, region);
    left.markClosed(undefined);
    expect(left.memory(2)?.length).toBe(0);
    expect(left.memory(4)).toBeUndefined();
    lost.markClosed(new ShoalError('peer-lost', 'it died'));
    expect(() => lost.memory(2)).toThrow(gone);
  });
});
