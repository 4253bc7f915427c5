/** Parts as pieces and back: whatever pieces come, what is made of them is a packet or refused. */
import { describe, expect, it } from 'vitest';
import { cut, join, pieceBytes } from './packet-socket.ts';

const part = (bytes: number): Uint8Array => new Uint8Array(bytes).fill(bytes % 251);
const lengths = (parts: readonly Uint8Array[]): number[] => parts.map(({ byteLength }) => byteLength);

describe('pieces of parts', () => {
  it.each([
    [[0], [0]],
    [
      [32, 5],
      [32, 5],
    ],
    [[pieceBytes - 1], [pieceBytes - 1]],
    [[pieceBytes], [pieceBytes, 0]],
    [
      [32, 2 * pieceBytes + 7, 1],
      [32, pieceBytes, pieceBytes, 7, 1],
    ],
    [
      [3 * pieceBytes, pieceBytes, 0],
      [pieceBytes, pieceBytes, pieceBytes, 0, pieceBytes, 0, 0],
    ],
  ])('%j are cut to %j and joined again', (bytes, expected) => {
    const parts = bytes.map(part);
    const pieces = cut(parts);
    expect(lengths(pieces)).toEqual(expected);
    const joined = join([...pieces], 2 ** 30);
    expect(lengths(joined)).toEqual(bytes);
    expect(joined.every((each, k) => Buffer.compare(each, parts[k]) === 0)).toBe(true);
  });

  it('are not copied where they are whole', () => {
    const parts = [part(40), part(pieceBytes)];
    expect(join([...cut(parts)], 2 ** 30).map(({ buffer }) => buffer)).toEqual(parts.map(({ buffer }) => buffer));
  });

  it('that do not end, or are too many, are refused', () => {
    const refused = expect.objectContaining({ code: 'protocol' });
    expect(() => join([part(pieceBytes)], 2 ** 30)).toThrow(refused);
    expect(() => join([part(pieceBytes), part(pieceBytes), part(1)], 2 * pieceBytes)).toThrow(refused);
  });
});
