/** Checkpoints: a world of another size loads what some ranks have saved, and damaged files are refused by name. What killed
 *  processes leave behind is in test/training/ddp-checkpoints.test.ts. */
import { cpSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { dtypes } from '../../memory/dtype.ts';
import { startRanks } from '../../group/testing/in-process-world.ts';
import type { Checkpoint, CheckpointTensor } from './checkpoint.ts';
import { Checkpoints } from './checkpoints.ts';
import { DistributedSampler } from '../sampler.ts';

const folders: string[] = [];
const folderOf = (): string => {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-checkpoints-'));
  folders.push(folder);
  return folder;
};
afterAll(() => folders.forEach((folder) => rmSync(folder, { recursive: true })));

const weights = (): Record<string, CheckpointTensor> => ({
  'layer.0': { data: Float32Array.of(1, 2, 3, 4, 5, -0), shape: [2, 3] },
  'layer.1': Float64Array.of(Math.PI, NaN),
  __proto__x: Int32Array.of(7),
  empty: new Uint8Array(0),
});

/** @returns the number of the last one. */
async function save(folder: string, n: number, times = 1, keep = 2): Promise<number> {
  await using world = await startRanks(n);
  const numbers = await world.each(async (group) => {
    const checkpoints = new Checkpoints(group, folder, { keep });
    let number = 0;
    for (let k = 0; k < times; k++) {
      number = await checkpoints.save({
        tensors: weights(),
        owned: { [`momentum of ${group.rank}`]: Float32Array.of(group.rank, k) },
        state: { step: 100 + k, nested: { list: [1, null, 'x', true] } },
      });
    }
    return number;
  });
  expect(new Set(numbers).size).toBe(1);
  return numbers[0];
}

async function load(folder: string, n: number, look: (checkpoint: Checkpoint | undefined, rank: number) => Promise<void>): Promise<void> {
  await using world = await startRanks(n);
  await world.each(async (group) => look(await new Checkpoints(group, folder).latest(), group.rank));
}

describe('what is saved', () => {
  it.each([
    [1, 1],
    [3, 2],
    [2, 4],
  ])('by %i ranks is loaded by %i, bit for bit', async (saving, loading) => {
    const folder = folderOf();
    expect(await save(folder, saving, 3)).toBe(3);
    expect(readdirSync(folder)).toEqual(['checkpoint-00000002', 'checkpoint-00000003']);
    await load(folder, loading, async (checkpoint) => {
      expect(checkpoint?.state).toEqual({ step: 102, nested: { list: [1, null, 'x', true] } });
      expect(checkpoint?.ranks).toBe(saving);
      const momenta = Array.from({ length: saving }, (_, rank) => [`momentum of ${rank}`, new Float32Array(2)] as const);
      const into = {
        'layer.0': { data: new Float32Array(6), shape: [2, 3] },
        'layer.1': new Float64Array(2),
        __proto__x: new Int32Array(1),
      };
      await checkpoint?.load({ ...into, empty: new Uint8Array(0), ...Object.fromEntries(momenta) });
      const { empty: _, ...expected } = weights();
      expect(into).toEqual(expected);
      expect(Object.is(into['layer.0'].data[5], -0)).toBe(true);
      expect(momenta.map(([, data]) => [...data])).toEqual(momenta.map((_each, rank) => [rank, 2]));
    });
  });

  it('has every dtype as tensors of a group have them, and parts of arrays', async () => {
    const folder = folderOf();
    await using world = await startRanks(2);
    await world.each(async (group) => {
      const make = (fill: number): Record<string, CheckpointTensor & { data: unknown }> =>
        Object.fromEntries(
          dtypes.map(({ name }, k) => {
            const tensor = group.tensor(name, [3]);
            new Uint8Array(tensor.region.buffer, tensor.byteOffset, tensor.bytes).fill(fill === 0 ? 0 : fill + k);
            return [name, tensor];
          }),
        );
      const part = new Float32Array([0, 1, 2, 3]).subarray(1, 3);
      const checkpoints = new Checkpoints(group, folder);
      await checkpoints.save({ tensors: { ...make(1), part } });
      const into = make(0);
      const again = new Float32Array(2);
      await (await checkpoints.latest())?.load({ ...into, part: again });
      expect(Object.values(into).map(({ data }) => data)).toEqual(Object.values(make(1)).map(({ data }) => data));
      expect(again).toEqual(Float32Array.of(1, 2));
    });
  });

  it('lies as the format of Hugging Face says, byte by byte', async () => {
    const folder = folderOf();
    await save(folder, 2);
    const at = join(folder, 'checkpoint-00000001');
    const index = JSON.parse(readFileSync(join(at, 'model.safetensors.index.json'), 'utf8')) as {
      weight_map: Record<string, string>;
      metadata: { total_size: number };
    };
    expect(Object.keys(index.weight_map).sort()).toEqual(['__proto__x', 'empty', 'layer.0', 'layer.1', 'momentum of 0', 'momentum of 1']);
    expect(index.metadata.total_size).toBe(24 + 16 + 4 + 8 + 8);
    // The file follows the public description of the format: u64 length, JSON, data. No code of this project reads it here.
    const bytes = readFileSync(join(at, index.weight_map['layer.0']));
    const length = Number(bytes.readBigUInt64LE(0));
    const header = JSON.parse(bytes.subarray(8, 8 + length).toString()) as Record<
      string,
      { dtype: string; shape: number[]; data_offsets: number[] }
    >;
    const {
      dtype,
      shape,
      data_offsets: [from, to],
    } = header['layer.0'];
    expect([dtype, shape]).toEqual(['F32', [2, 3]]);
    expect(
      bytes
        .subarray(8 + length)
        .subarray(from, to)
        .toString('hex'),
    ).toBe('0000803f0000004000004040000080400000a04000000080');
  });

  it('the sampler goes on where it was, on another number of ranks', () => {
    const seen = new Set<number>();
    const before = [0, 1, 2].map((rank) => new DistributedSampler(23, { group: { rank, size: 3 }, seed: 5 }));
    for (const sampler of before) {
      sampler.setEpoch(4);
      const batches = sampler.batches(2);
      for (let k = 0; k < 2; k++) (batches.next().value as number[]).forEach((item) => seen.add(item));
    }
    expect(seen.size).toBe(12);
    const [state] = before.map((sampler) => sampler.stateDict());
    expect(state).toEqual({ items: 23, seed: 5, shuffle: true, epoch: 4, position: 12 });
    const after = [0, 1].map((rank) => new DistributedSampler(23, { group: { rank, size: 2 }, seed: 5 }));
    for (const sampler of after) {
      sampler.loadStateDict(JSON.parse(JSON.stringify(state)) as typeof state);
      sampler.setEpoch(4);
      expect(sampler.length).toBe(6);
    }
    const rest = after.flatMap((sampler) => [...sampler]);
    expect(new Set([...seen, ...rest]).size).toBe(23);
    expect(rest.filter((item) => !seen.has(item))).toHaveLength(11);
    expect(after[0].stateDict().position).toBe(23);
    after[0].setEpoch(5);
    expect([after[0].length, after[0].stateDict().position]).toEqual([12, 0]);
    expect(() => after[0].loadStateDict({ ...state, seed: 6 })).toThrow(/the state has seed 6, this sampler 5/);
    expect(() => after[0].loadStateDict({ ...state, position: 24 })).toThrow(/is no place in 23 items/);
  });
});

describe('what has changed since is refused, by the name of its file', () => {
  const file = 'model-00001-of-00002.safetensors';
  const damages: readonly (readonly [what: string, damage: (at: string, folder: string) => void, message: RegExp])[] = [
    [
      'a file that is cut off',
      (at) => truncateSync(join(at, file), 100),
      /model-00001-of-00002.*the file has 100 bytes, it was saved with/,
    ],
    [
      'a file of another kind',
      (at) => writeFileSync(join(at, file), Buffer.alloc(readFileSync(join(at, file)).length, 'x')),
      /model-00001.*a header of/,
    ],
    [
      'a bit that has flipped',
      (at) => {
        const bytes = readFileSync(join(at, file));
        bytes[bytes.length - 60] ^= 4;
        writeFileSync(join(at, file), bytes);
      },
      /model-00001-of-00002.*(has changed|checksum)/,
    ],
    [
      'a file of another save',
      (at, folder) => cpSync(join(folder, 'checkpoint-00000001', file), join(at, file)),
      /model-00001.*of another save/,
    ],
    ['a file that is missing', (at) => rmSync(join(at, file)), /model-00001.*ENOENT/],
  ];
  it.each(damages)('%s', async (_, damage, message) => {
    const folder = folderOf();
    await save(folder, 2, 2);
    damage(join(folder, 'checkpoint-00000002'), folder);
    await load(folder, 1, async (checkpoint) => {
      const names = checkpoint?.names ?? [];
      expect(names).toHaveLength(6);
      const all = { ...weights(), 'momentum of 0': Float32Array.of(9, 9), 'momentum of 1': Float32Array.of(9, 9) };
      const error = await checkpoint?.load(all).catch((thrown: unknown) => thrown);
      expect(error).toMatchObject({ message: expect.stringMatching(message) as string });
      expect((error as Error).message).toMatch(/to resume from the checkpoint before, remove .*checkpoint-00000002$/);
      expect(all['momentum of 1']).toEqual(Float32Array.of(9, 9));
    });
  });

  it.each([
    ['edited', (text: string) => text.replace('"step":101', '"step":102').replace('"step": 101', '"step": 102')],
    ['cut off', (text: string) => text.slice(0, 200)],
    ['of another program', () => '{"metadata":{"total_size":1},"weight_map":{}}'],
    ['no object', () => '[]'],
  ])('an index that is %s', async (_, change) => {
    const folder = folderOf();
    await save(folder, 1, 2);
    const path = join(folder, 'checkpoint-00000002', 'model.safetensors.index.json');
    const text = readFileSync(path, 'utf8');
    writeFileSync(path, change(text));
    expect(readFileSync(path, 'utf8')).not.toBe(text);
    await expect(load(folder, 2, async () => undefined)).rejects.toMatchObject({
      code: 'protocol',
      message: expect.stringContaining(path) as string,
    });
    // The message's advice: with the damaged checkpoint moved away, the one before it loads.
    renameSync(join(folder, 'checkpoint-00000002'), join(folder, 'aside'));
    await load(folder, 2, async (checkpoint) => expect(checkpoint?.state).toMatchObject({ step: 100 }));
  });

  it('a tensor of another name, dtype or shape is not overwritten, nor is any other', async () => {
    const folder = folderOf();
    await save(folder, 1);
    await load(folder, 1, async (checkpoint) => {
      const fine = Float64Array.of(5, 5);
      const load_ = (more: Record<string, CheckpointTensor>): Promise<void> | undefined => checkpoint?.load({ 'layer.1': fine, ...more });
      await expect(load_({ other: fine })).rejects.toThrow(/has no tensor 'other'; it has 5/);
      await expect(load_({ 'layer.0': new Float64Array(6) })).rejects.toThrow(/is float32\[2, 3\], and does not fit float64\[6\]/);
      await expect(load_({ 'layer.0': { data: new Float32Array(6), shape: [3, 2] } })).rejects.toThrow(/does not fit float32\[3, 2\]/);
      expect(fine).toEqual(Float64Array.of(5, 5));
    });
  });
});

describe('a save that cannot be', () => {
  it('on one rank fails on all, and the one before stays', async () => {
    const folder = folderOf();
    await save(folder, 2);
    await using world = await startRanks(2);
    const errors = await world.each((group) =>
      new Checkpoints(group, folder)
        .save({ tensors: weights(), state: group.rank === 1 ? { loss: NaN } : {} })
        .catch((thrown: unknown) => thrown as { code: string; message: string; peer?: number }),
    );
    expect(errors).toMatchObject([
      { code: 'system', peer: 1, message: expect.stringContaining('rank 1: save: state.loss is NaN') as string },
      { code: 'usage', message: expect.stringContaining('state.loss is NaN, which JSON has no words for') as string },
    ]);
    const same = await world.each((group) =>
      new Checkpoints(group, folder).save({ owned: { x: new Int8Array(1) } }).catch((thrown: unknown) => thrown),
    );
    expect(same).toMatchObject([
      { code: 'usage' },
      { code: 'usage', message: expect.stringContaining("rank 1 has a tensor 'x' of its own") as string },
    ]);
    const latest = await world.each(async (group) => (await new Checkpoints(group, folder).latest())?.number);
    expect(latest).toEqual([1, 1]);
    expect(await save(folder, 1)).toBe(2);
    expect(readdirSync(folder)).toEqual(['checkpoint-00000001', 'checkpoint-00000002']);
  });

  it('that differs between ranks is not saved, on any of them', async () => {
    const folder = folderOf();
    await save(folder, 3);
    const [one, two] = [new Float32Array(3), new Float32Array(5)];
    const differing: ((rank: number) => Record<string, CheckpointTensor>)[] = [
      (rank): Record<string, CheckpointTensor> => (rank === 0 ? { one, two } : {}),
      (rank) => ({ [`w${rank}`]: one }),
      (rank) => ({ one: rank === 2 ? two : one }),
      (rank) => ({ one: rank === 2 ? { data: one, shape: [3, 1] } : one }),
    ];
    for (const tensors of differing) {
      await using world = await startRanks(3);
      const outcomes = await world.each((group) =>
        new Checkpoints(group, folder).save({ tensors: tensors(group.rank) }).catch((error: unknown) => error),
      );
      for (const outcome of outcomes)
        expect(outcome).toMatchObject({
          code: 'mismatch',
          message: expect.stringMatching(/tensors of rank [12] are not those of rank 0/) as string,
        });
    }
    await load(folder, 2, async (found) => expect(found!.number).toBe(1));
  });

  it('a tensor that was released is neither saved nor loaded into', async () => {
    const folder = folderOf();
    await save(folder, 1);
    await using world = await startRanks(1);
    const [group] = world.groups;
    const tensor = group.tensor('float64', [2]);
    group.release(tensor);
    const checkpoints = new Checkpoints(group, folder);
    await expect(checkpoints.save({ tensors: { tensor } })).rejects.toThrow("save: tensor 'tensor' has been released");
    const found = await checkpoints.latest();
    await expect(found!.load({ 'layer.1': tensor })).rejects.toThrow("load: tensor 'layer.1' has been released");
  });

  it('a folder that is none is told on every rank', async () => {
    const folder = folderOf();
    writeFileSync(join(folder, 'file'), '');
    await using world = await startRanks(2);
    const errors = await world.each((group) => new Checkpoints(group, join(folder, 'file')).save({}).catch((thrown: unknown) => thrown));
    for (const error of errors)
      expect(error).toMatchObject({ code: 'system', message: expect.stringMatching(/cannot be saved in .*file: E/) as string });
    if (process.platform === 'linux') {
      const nowhere = await world.each((group) => new Checkpoints(group, '/proc/none/x').save({}).catch((thrown: unknown) => thrown));
      for (const error of nowhere) expect(error).toMatchObject({ code: 'system', message: expect.stringMatching(/proc.none/) as string });
    }
    const none = await world.each((group) => new Checkpoints(group, join(folder, 'none')).latest());
    expect(none).toEqual([undefined, undefined]);
  });
});
