import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { dtypeInfo, dtypes } from '../../memory/dtype.ts';
import { packBatch, ParameterDirectory, unpackBatch, type DeclaredParameter } from './parameter-directory.ts';
import { elementsOf, Placer, rowElements, rowsOf, type Piece, type Placeable } from './placement.ts';

const parameter = fc.record({
  dtype: fc.constantFrom(...dtypes.map(({ name }) => name)),
  shape: fc.oneof(
    fc.array(fc.integer({ min: 0, max: 40 }), { maxLength: 3 }),
    fc.tuple(fc.integer({ min: 1, max: 500_000 })),
    fc.tuple(fc.integer({ min: 1, max: 700 }), fc.integer({ min: 1, max: 700 })),
  ),
});

const options = fc.record({
  servers: fc.integer({ min: 1, max: 9 }),
  sliceBytes: fc.constantFrom(16 * 1024, 256 * 1024, 1_000_000, 4 * 2 ** 20),
});

function bytesOf({ dtype }: Placeable, { elements }: Piece): number {
  return elements * dtypeInfo(dtype).bytes;
}

function declare(batch: readonly Placeable[], pieces: readonly Piece[][], name: string): DeclaredParameter[] {
  return batch.map(({ dtype, shape }, k) => ({ key: `${name}${k}`, dtype, shape, pieces: pieces[k] }));
}

describe('placement', () => {
  it('covers every parameter, by pieces that are not empty where it is not, on servers that exist, evenly', () => {
    fc.assert(
      fc.property(fc.array(parameter, { minLength: 1, maxLength: 30 }), options, (batch, { servers, sliceBytes }) => {
        const placed = new Placer({ servers, sliceBytes }).place(batch);
        const loads = Array.from({ length: servers }, () => 0);
        let largest = 0;
        for (const [k, item] of batch.entries()) {
          expect(placed[k].reduce((sum, { elements }) => sum + elements, 0)).toBe(elementsOf(item.shape));
          for (const piece of placed[k]) {
            const least = elementsOf(item.shape) === 0 && placed[k].length === 1 ? 0 : 1;
            if (piece.elements < least || piece.server < 0 || piece.server >= servers) expect.fail(JSON.stringify(piece));
            loads[piece.server] += bytesOf(item, piece);
            largest = Math.max(largest, bytesOf(item, piece));
          }
        }
        // Pieces go one after the other to whoever has least, and a slab of small parameters goes as one: up to 256 KiB.
        expect(Math.max(...loads) - Math.min(...loads)).toBeLessThanOrEqual(Math.max(largest, 256 * 1024));
      }),
      { numRuns: 3000 },
    );
  });

  it('cuts near-equal slices, between rows', () => {
    fc.assert(
      fc.property(parameter, options, (item, { servers, sliceBytes }) => {
        const [pieces] = new Placer({ servers, sliceBytes }).place([item]);
        const row = rowElements(item.shape);
        const { bytes } = dtypeInfo(item.dtype);
        const whole = row * bytes <= sliceBytes;
        const unit = whole ? Math.max(row * bytes, sliceBytes / 8) : 64;
        const sizes = pieces.map((piece) => bytesOf(item, piece));
        if (whole) expect(pieces.filter(({ elements }) => !Number.isInteger(rowsOf(item.shape, elements)))).toEqual([]);
        else expect(sizes.slice(0, -1).filter((size) => size % 64 !== 0)).toEqual([]);
        expect(Math.max(...sizes)).toBeLessThanOrEqual(Math.max(sliceBytes, 256 * 1024) + unit);
        // All but the last, which may be cut short, differ by at most one unit.
        if (sizes.length > 2) expect(Math.max(...sizes) - Math.min(...sizes.slice(0, -1))).toBeLessThanOrEqual(unit);
      }),
      { numRuns: 2000 },
    );
  });

  it("places the parameters of SINGA's example, for any number of servers", () => {
    const golden: Placeable[] = [2400, 32, 25600, 32, 51200, 64, 57600, 10].map((size) => ({ dtype: 'float32', shape: [size] }));
    for (let servers = 1; servers <= 12; servers++) {
      for (const sliceBytes of [4 * 2 ** 20, 2 ** 17]) {
        const placed = new Placer({ servers, sliceBytes }).place(golden);
        for (const [k, pieces] of placed.entries()) {
          expect(pieces.every(({ server, elements }) => server < servers && elements > 0)).toBe(true);
          expect(pieces.reduce((sum, { elements }) => sum + elements, 0)).toBe(golden[k].shape[0]);
        }
      }
    }
    // Three equal parameters on two servers: the original sent the third to server 2.
    const [a, b, c] = new Placer({ servers: 2, sliceBytes: 2 ** 22 }).place(
      Array.from({ length: 3 }, () => ({ dtype: 'float32', shape: [100_000] }) as const),
    );
    expect([a, b, c].map(([{ server }]) => server)).toEqual([0, 1, 0]);
  });

  it('packs small parameters so that neighbours stay neighbours', () => {
    const batch = Array.from({ length: 10_000 }, () => ({ dtype: 'float32', shape: [64] }) as const);
    const placed = new Placer({ servers: 2, sliceBytes: 4 * 2 ** 20 }).place(batch);
    const directory = new ParameterDirectory(2);
    directory.add(declare(batch, placed, 'k'));
    let stretches = 1;
    for (let k = 1; k < directory.count; k++) {
      const same = directory.pieceServer[k] === directory.pieceServer[k - 1] && directory.pieceSlab[k] === directory.pieceSlab[k - 1];
      if (!same) stretches++;
      else if (directory.pieceSlot[k] !== directory.pieceSlot[k - 1] + 1) expect.fail(`slot of parameter ${k}`);
    }
    expect(stretches).toBeLessThanOrEqual(12);
    expect(Math.abs(directory.slots(0).length - directory.slots(1).length)).toBeLessThanOrEqual(1024);
  });
});

describe('parameter directory', () => {
  it('gives every piece a slot of its own, slabs in one stretch, over batches', () => {
    fc.assert(
      fc.property(
        fc.array(fc.array(parameter, { minLength: 1, maxLength: 12 }), { minLength: 1, maxLength: 4 }),
        options,
        (batches, how) => {
          const placer = new Placer(how);
          const directory = new ParameterDirectory(how.servers);
          for (const [k, batch] of batches.entries()) {
            const declared = declare(batch, placer.place(batch), `${k}/`);
            directory.add(unpackBatch(JSON.parse(JSON.stringify(packBatch(declared)))));
            expect(directory.batch(k)).toEqual(declared);
          }
          for (let server = 0; server < how.servers; server++) {
            const slots = directory.slots(server);
            let slab = -1;
            for (const record of slots) {
              if (record.slab !== slab && record.slab !== slab + 1) expect.fail(`slab ${record.slab} after ${slab}`);
              ({ slab } = record);
            }
          }
          const seen = new Set<string>();
          for (let p = 0; p < directory.count; p++) {
            let at = 0;
            for (let piece = directory.firstPiece[p]; piece < directory.firstPiece[p + 1]; piece++) {
              const record = directory.slots(directory.pieceServer[piece])[directory.pieceSlot[piece]];
              const found = [record.parameter, record.firstElement, record.elements];
              if (found.join() !== [p, at, directory.pieceElements[piece]].join()) expect.fail(`piece ${piece} is ${found.join()}`);
              seen.add(`${directory.pieceServer[piece]}/${directory.pieceSlot[piece]}`);
              at += record.elements;
            }
          }
          expect(seen.size).toBe(directory.pieceServer.length);
        },
      ),
      { numRuns: 300 },
    );
  });

  it('refuses what is no placement, and stays as it was', () => {
    const directory = new ParameterDirectory(2);
    const good: DeclaredParameter = { key: 'a', dtype: 'float32', shape: [4], pieces: [{ server: 0, elements: 4, slab: 0 }] };
    const attempt = (changes: Partial<DeclaredParameter>, more: DeclaredParameter[] = []): void =>
      directory.add([{ ...good, ...changes }, ...more]);
    expect(() => attempt({ pieces: [{ server: 2, elements: 4, slab: 0 }] })).toThrow(/server 2 of 2/);
    expect(() => attempt({ pieces: [{ server: 0, elements: 3, slab: 0 }] })).toThrow(/3 of 4 elements/);
    expect(() => attempt({ pieces: [4, 0].map((elements) => ({ server: 0, elements, slab: 0 })) })).toThrow(/0 elements/);
    expect(() => attempt({ pieces: [{ server: 0, elements: 4, slab: 1 }] })).toThrow(/gaps/);
    expect(() => attempt({}, [{ ...good, key: 'b', dtype: 'int32' }])).toThrow(/two dtypes/);
    expect(() => attempt({}, [good])).toThrow(/'a' has been initialised already/);
    expect(() => directory.add([])).toThrow(/0 parameters/);
    expect(directory.count).toBe(0);
    directory.add([good]);
    expect(() => attempt({ key: 'c' })).toThrow(/another batch/);
    expect(directory.find('a')).toBe(0);
    expect(directory.find('c')).toBe(-1);
  });

  it('refuses packed batches of any other form', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        try {
          unpackBatch(value);
        } catch (error) {
          expect(error).toMatchObject({ name: 'ShoalError', code: 'protocol' });
        }
      }),
      { numRuns: 2000 },
    );
  });
});
