/** safetensors' tests of its reference implementation and of its Python package, told from their descriptions: of the format as Shoal
 *  writes and reads it, and of checkpoints in it. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect } from 'vitest';
import { seededRandom } from '../../src/base/random.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { decodeHeader, decodeHeaderLength, encodeHeader, headerBytesMax, lengthBytes, ownDType } from '../../src/checkpoint/safetensors.ts';
import type { SnapshotTensor } from '../../src/checkpoint/snapshot.ts';
import { Checkpoints, type CheckpointTensor } from '../../src/ddp/index.ts';
import { dtypeInfo, dtypes, type DType } from '../../src/memory/dtype.ts';
import { safetensorsPython, safetensorsRust } from './foreign-suites.ts';
import { onOwnRanks, ranksOf, sharedWorlds } from './support/shared-worlds.ts';
import { SuiteCases } from './support/suite-cases.ts';

interface Read {
  readonly tensors: ReadonlyMap<string, { readonly dtype: string; readonly shape: readonly number[]; readonly data: Uint8Array }>;
  readonly metadata: Readonly<Record<string, string>>;
}

const encoder = new TextEncoder();
const bytesOf = (array: ArrayBufferView): Uint8Array => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
const tensor = (dtype: DType, shape: readonly number[], array: ArrayBufferView): SnapshotTensor => ({ dtype, shape, data: bytesOf(array) });
const zeros = (dtype: DType, shape: readonly number[]): SnapshotTensor => {
  const count = shape.reduce((product, each) => product * each, 1);
  return { dtype, shape, data: new Uint8Array(count * dtypeInfo(dtype).bytes) };
};

function serialized(tensors: Readonly<Record<string, SnapshotTensor>>, metadata: Readonly<Record<string, string>> = {}): Uint8Array {
  const { prefix, tensors: ordered } = encodeHeader({ tensors: new Map(Object.entries(tensors)), metadata });
  return new Uint8Array(Buffer.concat([prefix, ...ordered.map(({ data }) => data)]));
}

function deserialized(file: Uint8Array): Read {
  const length = decodeHeaderLength(file, file.length);
  const data = file.subarray(lengthBytes + length);
  const { entries, metadata } = decodeHeader(file.subarray(lengthBytes, lengthBytes + length), data.length);
  return {
    tensors: new Map(entries.map(({ name, dtype, shape, from, to }) => [name, { dtype, shape, data: data.slice(from, to) }])),
    metadata,
  };
}

/** A file of a header and data, as some program may have written it. */
function fileOf(header: string | Uint8Array, data: Uint8Array | number = 0, length?: bigint): Uint8Array {
  const text = typeof header === 'string' ? encoder.encode(header) : header;
  const prefix = new Uint8Array(BigUint64Array.of(length ?? BigInt(text.length)).buffer);
  return new Uint8Array(Buffer.concat([prefix, text, typeof data === 'number' ? new Uint8Array(data) : data]));
}

/** The bytes that the format asks for: a header, padded to 8 bytes, then the data. */
function expectedFile(header: string, data: Uint8Array): Uint8Array {
  return fileOf(header.padEnd(Math.ceil(header.length / 8) * 8, ' '), data);
}

const entry = (dtype: string, shape: readonly number[], from: number, to: number): object => ({ dtype, shape, data_offsets: [from, to] });
const described = (entries: Readonly<Record<string, object>>): string => JSON.stringify(entries);
const refused = (file: Uint8Array): void => expect(() => deserialized(file)).toThrow(expect.objectContaining({ code: 'protocol' }));
const test22 = described({ test: entry('I32', [2, 2], 0, 16) });
const six = Float32Array.of(0, 1, 2, 3, 4, 5);

describe(safetensorsRust.name, () => {
  const cases = new SuiteCases(safetensorsRust);
  const seeds = ranksOf(5);
  /** Some tensors of some dtypes and shapes. */
  const arbitrary = (seed: number): Record<string, SnapshotTensor> => {
    const random = seededRandom(seed);
    const one = (): SnapshotTensor => {
      const { name: dtype } = dtypes[random.integer(dtypes.length)];
      const { data, shape } = zeros(
        dtype,
        ranksOf(1 + random.integer(5)).map(() => 1 + random.integer(5)),
      );
      return { dtype, shape, data: data.map((_, i) => i & 0xff) };
    };
    return Object.fromEntries(ranksOf(1 + random.integer(7)).map((k) => [`t.${k}`, one()]));
  };
  cases.each(
    'test_indexing',
    seeds,
    (seed) => `every tensor is found by its name, seed ${seed}`,
    (seed) => {
      const tensors = arbitrary(seed);
      const read = deserialized(serialized(tensors));
      expect([...read.tensors.keys()].sort()).toEqual(Object.keys(tensors).sort());
    },
  );
  cases.each(
    'test_roundtrip',
    seeds,
    (seed) => `tensors are the same afterwards, and aligned, seed ${seed}`,
    (seed) => {
      const tensors = arbitrary(seed + 100);
      const file = serialized(tensors);
      const length = decodeHeaderLength(file, file.length);
      const { entries } = decodeHeader(file.subarray(8, 8 + length), file.length - 8 - length);
      for (const each of entries) {
        const { dtype, shape, data } = tensors[each.name];
        expect([ownDType(each), each.shape]).toEqual([dtype, shape]);
        expect(file.subarray(8 + length + each.from, 8 + length + each.to)).toEqual(data);
        expect((8 + length + each.from) % dtypeInfo(dtype).bytes).toBe(0);
      }
    },
  );
  cases.add('test_serialization', 'the bytes of a tensor of three dimensions', () => {
    const file = serialized({ 'attn.0': tensor('float32', [1, 2, 3], six) });
    expect(file).toEqual(expectedFile('{"__metadata__":{},"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}', bytesOf(six)));
    expect(deserialized(file).tensors.size).toBe(1);
  });
  cases.add('test_serialization_fp4', 'two elements of 4 bits in a byte', () => {
    const { tensors } = deserialized(fileOf(described({ 'attn.0': entry('F4', [1, 2], 0, 1) }), Uint8Array.of(0x5a)));
    expect(tensors.get('attn.0')).toEqual({ dtype: 'F4', shape: [1, 2], data: Uint8Array.of(0x5a) });
  });
  cases.add('test_serialization_fp4_misaligned', 'three elements of 4 bits', () =>
    refused(fileOf(described({ x: entry('F4', [1, 3], 0, 2) }), 2)),
  );
  cases.add('test_serialization_fp4_invalid', 'more bytes than elements', () =>
    refused(fileOf(described({ x: entry('F4', [1, 2], 0, 2) }), 2)),
  );
  cases.add('test_empty', 'no tensors, with metadata and without', () => {
    expect(serialized({}, { framework: 'pt' })).toEqual(expectedFile('{"__metadata__":{"framework":"pt"}}', new Uint8Array(0)));
    expect(deserialized(serialized({}))).toEqual({ tensors: new Map(), metadata: {} });
    expect(deserialized(fileOf('{}      ')).tensors.size).toBe(0);
  });
  cases.add('test_serialization_forced_alignement', 'the data begins at a multiple of 8', () => {
    for (const name of ['attn0', 'attn.0', 'attn_00', 'attn_000']) {
      const file = serialized({ [name]: tensor('float32', [1, 1, 2, 3], six) });
      const header = `{"__metadata__":{},"${name}":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}`;
      expect(file).toEqual(expectedFile(header, bytesOf(six)));
      expect((file.length - 24) % 8).toBe(0);
    }
  });
  /** The tensors of GPT-2, with an eighth of its width. */
  const gpt2 = (layers: number): Record<string, SnapshotTensor> => {
    const width = 96;
    const shapes: [string, number[]][] = [
      ['wte', [6283, width]],
      ['wpe', [128, width]],
      ['ln_f.weight', [width]],
      ['ln_f.bias', [width]],
    ];
    for (const i of ranksOf(layers)) {
      const layer: [string, number[]][] = [
        ['ln_1.weight', [width]],
        ['ln_1.bias', [width]],
        ['attn.bias', [1, 1, 128, 128]],
        ['attn.c_attn.weight', [width, 3 * width]],
        ['attn.c_attn.bias', [3 * width]],
        ['attn.c_proj.weight', [width, width]],
        ['attn.c_proj.bias', [width]],
        ['ln_2.weight', [width]],
        ['ln_2.bias', [width]],
        ['mlp.c_fc.weight', [width, 4 * width]],
        ['mlp.c_fc.bias', [4 * width]],
        ['mlp.c_proj.weight', [4 * width, width]],
        ['mlp.c_proj.bias', [width]],
      ];
      shapes.push(...layer.map(([name, shape]): [string, number[]] => [`h.${i}.${name}`, shape]));
    }
    return Object.fromEntries(shapes.map(([name, shape]) => [name, zeros('float32', shape)]));
  };
  for (const [test, layers] of [
    ['test_gpt2', 12],
    ['test_gpt2_tiny', 6],
  ] as const) {
    cases.add(test, `a file of ${13 * layers + 4} tensors`, async () => {
      const tensors = gpt2(layers);
      for (const [k, { data }] of Object.values(tensors).entries()) data.fill(k % 251);
      const path = join(temporaryFolder('suites'), 'model.safetensors');
      await writeFile(path, serialized(tensors));
      const read = deserialized(await readFile(path));
      expect(read.tensors.size).toBe(13 * layers + 4);
      for (const [name, { shape, data }] of read.tensors) {
        expect(shape).toEqual(tensors[name].shape);
        expect(Buffer.compare(data, tensors[name].data)).toBe(0);
      }
    });
  }
  cases.add('test_serialize_to_file_same_path_with_active_mmap', 'what was loaded is saved again to the same place', () =>
    onOwnRanks(1, async (group) => {
      const checkpoints = new Checkpoints(group, temporaryFolder('suites'), { keep: 1 });
      const w = Float32Array.of(1, 2, 3);
      await checkpoints.save({ tensors: { w } });
      for (let round = 0; round < 2; round++) {
        const latest = await checkpoints.latest();
        w.fill(0);
        await latest!.load({ w });
        await checkpoints.save({ tensors: { w } });
        expect([...w]).toEqual([1, 2, 3]);
      }
    }),
  );
  cases.add('test_empty_shapes_allowed', 'a tensor without dimensions has one element', () => {
    const { tensors } = deserialized(fileOf(described({ test: entry('I32', [], 0, 4) }), 4));
    expect(tensors.get('test')).toEqual({ dtype: 'I32', shape: [], data: new Uint8Array(4) });
  });
  cases.add('test_deserialization', 'a tensor of another program', () => {
    const { tensors } = deserialized(fileOf(test22, 16));
    expect([...tensors]).toEqual([['test', { dtype: 'I32', shape: [2, 2], data: new Uint8Array(16) }]]);
  });
  cases.add('test_json_attack', 'ten tensors at the same place', () =>
    refused(fileOf(described(Object.fromEntries(ranksOf(10).map((i) => [`weight_${i}`, entry('F32', [2, 2], 0, 16)]))), 16)),
  );
  const wrongData = [
    ['more data than tensors', fileOf(test22, Uint8Array.of(...new Uint8Array(16), ...encoder.encode('another file')))],
    ['less data than tensors', fileOf(test22, 14)],
  ] as const;
  cases.each(
    'test_metadata_incomplete_buffer',
    wrongData,
    ([what]) => what,
    ([, file]) => refused(file),
  );
  cases.add('test_header_too_large', 'a length beyond all files', () => refused(fileOf(test22, 16, 0xffffff000000003cn)));
  cases.add('test_header_too_small', 'an empty file', () => refused(new Uint8Array(0)));
  cases.add('test_invalid_header_length', 'a length without a header', () => refused(fileOf('', 0, 0x3cn)));
  cases.add('test_invalid_header_non_utf8', 'a header that is no text', () => refused(fileOf(Uint8Array.of(0xff))));
  cases.add('test_invalid_header_not_json', 'a header that is no JSON', () => refused(fileOf('{')));
  cases.add('test_whitespace_padded_header', 'white space after the header', () =>
    expect(deserialized(fileOf('{}\r \t\n')).tensors.size).toBe(0),
  );
  cases.add('test_whitespace_leading_padded_header', 'white space before the header', () =>
    expect(deserialized(fileOf('\t\n{}\r ')).tensors.size).toBe(0),
  );
  cases.add('test_zero_sized_tensor', 'a dimension of 0', () => {
    const { tensors } = deserialized(fileOf('{"test":{"dtype":"I32","shape":[2,0],"data_offsets":[0, 0]}}'));
    expect(tensors.get('test')).toEqual({ dtype: 'I32', shape: [2, 0], data: new Uint8Array(0) });
  });
  cases.add('test_invalid_info', 'offsets that do not fit the shape', () =>
    refused(fileOf(described({ test: entry('I32', [2, 2], 0, 4) }), 4)),
  );
  cases.each(
    'test_validation_overflow',
    ['18446744073709551614', '9223372036854775807'],
    (dimension) => `a dimension of ${dimension}`,
    (dimension) => refused(fileOf(`{"test":{"dtype":"I32","shape":[2,${dimension}],"data_offsets":[0,16]}}`, 16)),
  );
  cases.add('test_invalid_header_size_serialization', 'metadata beyond the limit of a header', () => {
    expect(() => serialized({}, { large: 'a'.repeat(headerBytesMax) })).toThrow(expect.objectContaining({ code: 'unsupported' }));
  });
  cases.complete();
});

describe(safetensorsPython.name, () => {
  const cases = new SuiteCases(safetensorsPython);
  const onRanks = sharedWorlds();
  /** Saves in a new folder with one rank, and loads into other arrays. */
  const savedAndLoaded = async (
    tensors: Readonly<Record<string, CheckpointTensor>>,
    into: Readonly<Record<string, CheckpointTensor>>,
  ): Promise<string> => {
    const folder = temporaryFolder('suites');
    await onRanks(1, async (group) => {
      const checkpoints = new Checkpoints(group, folder);
      await checkpoints.save({ tensors });
      const latest = await checkpoints.latest();
      expect(latest!.names.sort()).toEqual(Object.keys(tensors).sort());
      await latest!.load(into);
    });
    return folder;
  };

  const data22 = (last: number): SnapshotTensor => tensor('int32', [2, 2], Int32Array.of(0, 0, 0, last));
  const header22 = '{"__metadata__":{},"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}';
  for (const suite of ['simple', 'pt_comparison'] as const) {
    cases.each(
      `${suite}.serialization`,
      [0, 1],
      (last) => `the last element is ${last}`,
      (last) => {
        expect(serialized({ test: data22(last) })).toEqual(expectedFile(header22, bytesOf(Int32Array.of(0, 0, 0, last))));
      },
    );
    cases.add(`${suite}.deserialization_metadata`, 'metadata beside tensors', () => {
      const header = '{"__metadata__":{"framework":"pt"},"test1":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}       ';
      expect(deserialized(fileOf(header, 16)).metadata).toEqual({ framework: 'pt' });
    });
  }
  cases.add('pt_comparison.serialization', 'elements of bfloat16', () => {
    const file = serialized({ test: tensor('bfloat16', [2, 2], Uint16Array.of(0x4010, 0x3f80, 0x3f80, 0x3f80)) });
    expect(Buffer.from(file.subarray(-8)).toString('latin1')).toBe('\x10@\x80?\x80?\x80?');
  });
  cases.add('simple.deserialization', 'a tensor of zeros', () => {
    expect(deserialized(fileOf(test22, 16)).tensors.get('test')?.data).toEqual(new Uint8Array(16));
  });
  cases.add('simple.serialization_order_invariant', 'the order of tensors in memory is none of the file', () => {
    expect(serialized({ test1: data22(0), test2: data22(0) })).toEqual(serialized({ test2: data22(0), test1: data22(0) }));
  });
  cases.add('simple.serialization_forces_alignment', 'wider elements come first, and the data is aligned', () => {
    const half = zeros('float16', [2, 2]);
    const [one, other] = [serialized({ test1: data22(0), test2: half }), serialized({ test2: half, test1: data22(0) })];
    expect(one).toEqual(other);
    const header = `{"__metadata__":{},"test1":${JSON.stringify(entry('I32', [2, 2], 0, 16))},"test2":${JSON.stringify(entry('F16', [2, 2], 16, 24))}}`;
    expect(one).toEqual(expectedFile(header, new Uint8Array(24)));
  });
  cases.add('simple.serialization_metadata', 'the same bytes as the reference writes', () => {
    const header = '{"__metadata__":{"framework":"pt"},"test1":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}';
    const file = serialized({ test1: data22(0) }, { framework: 'pt' });
    expect(file).toEqual(expectedFile(header, new Uint8Array(16)));
    expect(file.indexOf(0, 8)).toBe(104);
  });
  const examples: readonly (readonly [string, string, () => Record<string, CheckpointTensor>])[] = [
    ['simple.accept_path', 'floats and bytes', () => ({ a: new Float32Array(4), b: new Uint8Array(6) })],
    ['simple.numpy_example', 'doubles and bytes', () => ({ a: Float64Array.of(1, 2, 3, 4), b: Uint8Array.of(5, 6, 7, 8, 9, 10) })],
    [
      'simple.torch_example',
      'matrices with their shapes',
      () => ({ a: { data: Float32Array.of(1, -2, 3, -4), shape: [2, 2] }, b: { data: Uint8Array.of(1, 2, 3, 4, 5, 6), shape: [2, 3] } }),
    ],
    ['pt_comparison.zero_sized', 'an empty tensor', () => ({ test: { data: new Float32Array(0), shape: [2, 0] } })],
    [
      'pt_comparison.multiple_zero_sized',
      'two empty tensors',
      () => ({ test: { data: new Float32Array(0), shape: [2, 0] }, test2: { data: new Float32Array(0), shape: [2, 0] } }),
    ],
    ['pt_comparison.in_memory', 'a matrix of zeros', () => ({ test: { data: new Float32Array(4), shape: [2, 2] } })],
    [
      'pread_backend.load_file_round_trip',
      'several dtypes, empty and without dimensions',
      () => ({
        fp32_2d: { data: Float32Array.from({ length: 12 }, (_, i) => i), shape: [3, 4] },
        scalar: { data: Float32Array.of(7.5), shape: [] },
        empty: { data: new Int16Array(0), shape: [0, 5] },
        i64: BigInt64Array.of(0n, 1n, 2n, 3n, 4n),
      }),
    ],
    [
      'pread_backend.get_tensors_round_trip',
      'integers of all widths',
      () => ({ a: Int8Array.of(-1), b: Int16Array.of(-2), c: Uint16Array.of(3), d: Uint32Array.of(4), e: BigInt64Array.of(-5n) }),
    ],
    [
      'pread_backend.numpy_framework',
      'floats and long integers',
      () => ({
        a: { data: six.slice(), shape: [2, 3] },
        b: { data: BigInt64Array.from({ length: 8 }, (_, i) => BigInt(i)), shape: [4, 2] },
      }),
    ],
    [
      'pread_backend.load_model',
      'a layer, into one with other weights',
      () => ({ weight: { data: Float32Array.from({ length: 12 }, (_, i) => i / 7), shape: [3, 4] }, bias: Float32Array.of(1, 2, 3) }),
    ],
  ];
  const arrayOf = (value: CheckpointTensor): Float32Array => (ArrayBuffer.isView(value) ? value : value.data) as Float32Array;
  for (const [test, what, make] of examples) {
    cases.add(test, `${what}, saved and loaded`, async () => {
      const [tensors, into] = [make(), make()];
      for (const each of Object.values(into)) bytesOf(arrayOf(each)).fill(0x55);
      await savedAndLoaded(tensors, into);
      expect(into).toEqual(tensors);
    });
  }
  cases.each(
    'simple.numpy_bool',
    [0, 1],
    (value) => `a single ${value === 1}`,
    (value) =>
      onRanks(1, async (group) => {
        const [saved, loaded] = [group.tensor('bool', []), group.tensor('bool', [])];
        saved.data[0] = value;
        await savedAndLoadedIn(group, { a: saved }, { a: loaded });
        expect(loaded.data[0]).toBe(value);
      }),
  );
  async function savedAndLoadedIn(
    group: ConstructorParameters<typeof Checkpoints>[0],
    tensors: Record<string, CheckpointTensor>,
    into: Record<string, CheckpointTensor>,
  ): Promise<void> {
    const checkpoints = new Checkpoints(group, temporaryFolder('suites'));
    await checkpoints.save({ tensors });
    await (await checkpoints.latest())!.load(into);
  }
  cases.each(
    'pt_comparison.odd_dtype',
    ['bfloat16', 'float16', 'bool'] as const,
    (dtype) => dtype,
    (dtype) =>
      onRanks(1, async (group) => {
        const [saved, loaded] = [group.tensor(dtype, [2, 2]), group.tensor(dtype, [2, 2])];
        saved.data.set(dtype === 'bool' ? [1, 0, 0, 1] : [0x3c00, 0x4010, 0x3f80, 0x8001]);
        await savedAndLoadedIn(group, { test: saved }, { test: loaded });
        expect(loaded.data).toEqual(saved.data);
      }),
  );
  const foreign = [
    ['complex', 'C64', 8],
    ['odd_dtype_fp8_e4m3fn', 'F8_E4M3', 1],
    ['odd_dtype_fp8_e5m2', 'F8_E5M2', 1],
    ['odd_dtype_fp8_e8m0', 'F8_E8M0', 1],
    ['odd_dtype_fp8_fnuz', 'F8_E4M3FNUZ', 1],
    ['odd_dtype_fp8_fnuz', 'F8_E5M2FNUZ', 1],
    ['odd_dtype_fp4', 'F4', 0.5],
  ] as const;
  for (const [test, dtype, bytes] of foreign) {
    cases.add(`pt_comparison.${test}`, `${dtype}: listed, its bytes read, its elements refused by name`, () => {
      const data = Uint8Array.from({ length: 4 * bytes }, (_, i) => i + 1);
      const header = encoder.encode(described({ test: entry(dtype, [2, 2], 0, data.length) }));
      expect(deserialized(fileOf(header, data)).tensors.get('test')).toEqual({ dtype, shape: [2, 2], data });
      const { entries } = decodeHeader(header, data.length);
      expect(() => ownDType(entries[0])).toThrow(expect.objectContaining({ code: 'unsupported', message: expect.stringContaining(dtype) }));
    });
  }
  cases.add('pt_comparison.disjoint_tensors_shared_storage', 'two parts of one array', async () => {
    const whole = Float32Array.from({ length: 100 }, (_, i) => i);
    const into = { test: new Float32Array(90), test2: new Float32Array(10) };
    await savedAndLoaded({ test: whole.subarray(10), test2: whole.subarray(0, 10) }, into);
    expect([into.test[0], into.test[89], into.test2[9]]).toEqual([10, 99, 9]);
  });
  const bogus = [
    ['a tensor that is an object', { tensors: { test: { some: 'thing' } } }],
    ['a tensor that is text', { tensors: { test: 'x' } }],
    ['tensors that are text', { tensors: 'notadict' }],
    ['an array that does not have its shape', { tensors: { test: { data: new Float32Array(3), shape: [2, 2] } } }],
  ] as const;
  cases.each(
    'pt_comparison.bogus',
    bogus,
    ([what]) => `refused: ${what}`,
    ([, contents]) =>
      onRanks(1, async (group) => {
        const checkpoints = new Checkpoints(group, temporaryFolder('suites'));
        await expect(checkpoints.save(contents as never)).rejects.toMatchObject({ code: 'usage' });
      }),
  );
  cases.each(
    'simple.exception',
    ['nonsense', 'float32', ''],
    (dtype) => `refused: the dtype '${dtype}'`,
    (dtype) => {
      expect(() => deserialized(fileOf(described({ test: entry(dtype, [1], 0, 4) }), 4))).toThrow(
        expect.objectContaining({ code: 'unsupported' }),
      );
    },
  );
  cases.add('simple.file_not_found', 'a folder that is not there has no checkpoint', () =>
    onRanks(1, async (group) =>
      expect(await new Checkpoints(group, join(temporaryFolder('suites'), 'notafolder')).latest()).toBeUndefined(),
    ),
  );
  cases.add('pt_comparison.deserialization_safe', 'three large tensors', async () => {
    const names = ['test', 'test2', 'test3'];
    const make = (): Record<string, Float32Array> =>
      Object.fromEntries(names.map((name, k) => [name, Float32Array.from({ length: 2 ** 18 }, (_, i) => i * (k + 1))]));
    const [saved, into] = [make(), Object.fromEntries(names.map((name) => [name, new Float32Array(2 ** 18)]))];
    await savedAndLoaded(saved, into);
    for (const name of names) expect(Buffer.compare(bytesOf(into[name]), bytesOf(saved[name]))).toBe(0);
  });
  cases.add('pread_backend.safe_open_round_trip', 'another program can read a file of a checkpoint', async () => {
    const a = Float32Array.of(1, 2);
    const folder = await savedAndLoaded({ a }, { a: new Float32Array(2) });
    const [made] = await readdir(folder);
    const [name] = (await readdir(join(folder, made))).filter((each) => each.endsWith('.safetensors'));
    expect(deserialized(new Uint8Array(await readFile(join(folder, made, name)))).tensors.get('a')).toEqual({
      dtype: 'F32',
      shape: [2],
      data: bytesOf(a),
    });
  });
  cases.add('pread_backend.truncated_header_is_rejected', 'half of a header', () => {
    const file = serialized({ a: data22(1) });
    refused(file.slice(0, 8 + Math.floor(decodeHeaderLength(file, file.length) / 2)));
  });
  cases.add('pread_backend.data_offset_overflow_is_rejected', 'offsets beyond the file', () =>
    refused(fileOf(described({ liar: entry('F32', [1024, 1024], 0, 4_194_304) }), 1)),
  );
  cases.complete();
});
