import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { isShoalError } from '../base/errors.ts';
import { readSnapshot } from './snapshot-file.ts';
import type { FileCalls } from './durable.ts';
import { SnapshotFolder } from './snapshot-folder.ts';
import type { Snapshot, SnapshotTensor } from './snapshot.ts';

let folder: string;
beforeEach(async () => {
  folder = await fs.mkdtemp(join(tmpdir(), 'shoal-snapshots-'));
});
afterEach(() => fs.rm(folder, { recursive: true, force: true }));

/** A snapshot in which every byte tells its version. */
function version(number: number, bytes = 1000): Snapshot {
  const data = (count: number): Uint8Array => new Uint8Array(count).fill(number);
  return {
    tensors: new Map([
      ['large', { dtype: 'uint8', shape: [bytes], data: data(bytes) }],
      ['small', { dtype: 'uint8', shape: [3], data: data(3) }],
    ]),
    metadata: { version: String(number) },
  };
}

/** The version of a snapshot, which must be whole. */
function versionOf(snapshot: Snapshot | undefined): number | undefined {
  if (snapshot === undefined) return undefined;
  const number = Number(snapshot.metadata.version);
  for (const { data } of snapshot.tensors.values()) expect(data.every((byte) => byte === number)).toBe(true);
  return number;
}

/** Calls `before` with the name of each call of the file system, before it is made. */
function watched(before: (call: string, path: string) => void): FileCalls {
  const watchHandle = (handle: fs.FileHandle, path: string): fs.FileHandle =>
    new Proxy(handle, {
      get(target, name) {
        const member: unknown = Reflect.get(target, name, target);
        if (typeof member !== 'function') return member;
        return (...rest: unknown[]): unknown => {
          if (name !== 'close') before(String(name), path);
          return (member as (...all: unknown[]) => unknown).apply(target, rest);
        };
      },
    });
  const watch =
    <A extends [path: unknown, ...rest: unknown[]], R>(name: string, call: (...rest: A) => Promise<R>) =>
    async (...rest: A): Promise<R> => {
      before(name, String(rest[0]));
      const result = await call(...rest);
      return name === 'open' ? (watchHandle(result as fs.FileHandle, String(rest[0])) as R) : result;
    };
  return {
    mkdir: watch('mkdir', fs.mkdir) as typeof fs.mkdir,
    open: watch('open', fs.open),
    readdir: watch('readdir', fs.readdir as (path: unknown) => Promise<string[]>) as unknown as typeof fs.readdir,
    rename: watch('rename', fs.rename),
    rm: watch('rm', fs.rm),
  };
}

describe('SnapshotFolder', () => {
  it('loads the latest, keeps the one before, removes the others', async () => {
    const store = new SnapshotFolder(join(folder, 'made', 'on', 'the way'));
    expect(await store.load()).toBeUndefined();
    for (const number of [1, 2, 3]) {
      await store.save(version(number));
      expect(versionOf(await store.load())).toBe(number);
    }
    expect((await fs.readdir(join(folder, 'made/on/the way'))).sort()).toEqual([
      'snapshot-00000002.safetensors',
      'snapshot-00000003.safetensors',
    ]);
  });

  it('goes on where another process stopped, and ignores foreign files', async () => {
    await new SnapshotFolder(folder).save(version(1));
    for (const other of ['snapshot.part', 'snapshot-9.safetensors', 'snapshot-00000009.safetensors.part', 'notes.txt']) {
      await fs.writeFile(join(folder, other), 'other');
    }
    const store = new SnapshotFolder(folder);
    expect(versionOf(await store.load())).toBe(1);
    await store.save(version(2));
    expect(versionOf(await new SnapshotFolder(folder).load())).toBe(2);
    expect(await fs.readdir(folder)).not.toContain('snapshot.part');
  });

  it('names a dtype that the format has and Shoal does not', async () => {
    await new SnapshotFolder(folder).save({
      tensors: new Map([['eighths', { dtype: 'int64', shape: [1], data: new Uint8Array(8) }]]),
      metadata: {},
    });
    const path = join(folder, 'snapshot-00000001.safetensors');
    await fs.writeFile(path, (await fs.readFile(path, 'latin1')).replace('"I64"', '"C64"'), 'latin1');
    const file = await fs.open(path);
    await expect(readSnapshot(file)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining("'eighths' has dtype 'C64'"),
    });
    await file.close();
  });

  it('keeps every tensor as it was', async () => {
    const store = new SnapshotFolder(folder);
    const tensors = new Map(
      Array.from({ length: 1500 }, (_, k) => [
        `tensor ${k}`,
        { dtype: 'int32', shape: [k % 7], data: new Uint8Array(Int32Array.from({ length: k % 7 }, (_, i) => k * 10 + i).buffer) } as const,
      ]),
    );
    tensors.set('large', { dtype: 'int32', shape: [5_000_001], data: new Uint8Array(new Int32Array(5_000_001).fill(3).buffer) });
    await store.save({ tensors, metadata: { step: '7' } });
    const loaded = await store.load();
    expect(loaded?.metadata).toEqual({ step: '7' });
    expect(loaded?.tensors.size).toBe(1501);
    for (const [name, { shape, data }] of tensors) {
      const found = loaded?.tensors.get(name);
      expect(found?.shape).toEqual(shape);
      expect(Buffer.compare(found?.data ?? new Uint8Array(), data)).toBe(0);
    }
  });

  it('a crash before any call of the file system leaves the last or the new snapshot, whole', async () => {
    const calls: string[] = [];
    const warm = join(folder, 'warm');
    await new SnapshotFolder(warm).save(version(1));
    await new SnapshotFolder(warm, { files: watched((call) => calls.push(call)) }).save(version(2));
    const outcomes = new Set<number | undefined>();
    for (let crashAt = 0; crashAt <= calls.length; crashAt++) {
      const place = join(folder, `crash ${crashAt}`);
      await new SnapshotFolder(place).save(version(1));
      await new SnapshotFolder(place).save(version(2));
      let left = crashAt;
      const dying = new SnapshotFolder(place, {
        files: watched(() => {
          // Once the process is dead, it makes no further call, not even to clean up.
          if (left-- <= 0) throw new Error('the process is dead');
        }),
      });
      const saved = await dying.save(version(3)).then(
        () => true,
        () => false,
      );
      const found = versionOf(await new SnapshotFolder(place).load());
      outcomes.add(found);
      expect(saved ? [3] : [2, 3]).toContain(found);
      // The next process can save.
      await new SnapshotFolder(place).save(version(4));
      expect(versionOf(await new SnapshotFolder(place).load())).toBe(4);
    }
    expect(outcomes).toEqual(new Set([2, 3]));
  });

  it('makes data durable before its name, and its name before anything is removed', async () => {
    await new SnapshotFolder(folder).save(version(1));
    await new SnapshotFolder(folder).save(version(2));
    const calls: string[] = [];
    const files = watched((call, path) => calls.push(`${call} ${path === folder ? 'folder' : path.slice(folder.length + 1)}`));
    await new SnapshotFolder(folder, { files }).save(version(3));
    const steps = calls.filter((call) => /^(sync|rename|rm|writev) /.test(call));
    expect(steps).toEqual([
      'writev snapshot.part',
      'sync snapshot.part',
      'rename snapshot.part',
      'sync folder',
      'rm snapshot-00000001.safetensors',
    ]);
  });

  it('goes on when the system takes or gives less than asked', async () => {
    const files: FileCalls = {
      ...fs,
      open: async (...rest) => {
        const handle = await fs.open(...rest);
        return new Proxy(handle, {
          get(target, name) {
            if (name === 'writev') return (pieces: Uint8Array[]) => target.writev([pieces[0].subarray(0, 4099)]);
            if (name === 'read') {
              return (into: Uint8Array, offset: number, length: number, position: number) =>
                target.read(into, offset, Math.min(length, 777), position);
            }
            const member: unknown = Reflect.get(target, name, target);
            return typeof member === 'function' ? member.bind(target) : member;
          },
        });
      },
    };
    const store = new SnapshotFolder(folder, { files });
    await store.save(version(5, 100_000));
    expect(versionOf(await store.load())).toBe(5);
    expect(versionOf(await new SnapshotFolder(folder).load())).toBe(5);
  });

  it('gives the disk back when a save fails, and names the folder', async () => {
    await new SnapshotFolder(folder).save(version(1));
    const files = watched((call) => {
      if (call === 'writev') throw Object.assign(new Error('ENOSPC: no space left on device'), { code: 'ENOSPC' });
    });
    await expect(new SnapshotFolder(folder, { files }).save(version(2))).rejects.toMatchObject({
      code: 'system',
      message: expect.stringContaining(`cannot be saved in ${folder}: ENOSPC`) as string,
    });
    expect(await fs.readdir(folder)).toEqual(['snapshot-00000001.safetensors']);
  });

  it('uses the one before a damaged file, says so, and names all files when none is whole', async () => {
    const damages: string[] = [];
    const store = new SnapshotFolder(folder, { onDamaged: ({ code, message }) => damages.push(`${code} ${message}`) });
    await store.save({ ...version(1), metadata: { version: '1', save: 'first' } });
    await store.save({ ...version(2), metadata: { version: '2', save: 'second' } });
    expect(await store.saves()).toEqual(['second', 'first']);
    await fs.truncate(join(folder, 'snapshot-00000002.safetensors'), 700);
    expect(versionOf(await store.load())).toBe(1);
    expect(damages).toEqual([expect.stringMatching(/^protocol .*snapshot-00000002\.safetensors: safetensors: /)]);
    expect(await store.saves()).toEqual(['first']);
    expect(versionOf(await store.load('first'))).toBe(1);
    await expect(store.load('second')).rejects.toMatchObject({ code: 'protocol' });
    expect(await new SnapshotFolder(join(folder, 'nowhere')).load('second')).toBeUndefined();
    const file = await fs.open(join(folder, 'snapshot-00000001.safetensors'), 'r+');
    await file.write(Uint8Array.of(77), 0, 1, 600);
    await file.close();
    await expect(store.load()).rejects.toMatchObject({
      code: 'protocol',
      message: expect.stringMatching(/snapshot-00000002\.safetensors: .*; .*snapshot-00000001\.safetensors: damaged: /) as string,
    });
    await store.save(version(3));
    expect(versionOf(await store.load())).toBe(3);
  });

  it('uses the one before a pipe', async () => {
    const damages: string[] = [];
    const store = new SnapshotFolder(folder, { onDamaged: ({ message }) => damages.push(message) });
    await store.save(version(1));
    execFileSync('mkfifo', [join(folder, 'snapshot-00000002.safetensors')]);
    expect(versionOf(await store.load())).toBe(1);
    expect(damages).toEqual([expect.stringContaining('is a pipe; only regular files are read')]);
  });

  it('finds every flipped bit, wherever it is', async () => {
    const tensors = new Map<string, SnapshotTensor>([
      ['weights', { dtype: 'float32', shape: [2, 3], data: new Uint8Array(Float32Array.of(1, -2, 0, 4, NaN, 6).buffer) }],
      ['flags', { dtype: 'bool', shape: [3], data: Uint8Array.of(1, 0, 1) }],
      ['7', { dtype: 'int64', shape: [0], data: new Uint8Array() }],
    ]);
    await new SnapshotFolder(folder).save({ tensors, metadata: { a: 'text', b: '{"c":[1,2]}' } });
    const path = join(folder, 'snapshot-00000001.safetensors');
    const bytes = await fs.readFile(path);
    const handle = (content: Uint8Array): fs.FileHandle =>
      ({
        stat: () => Promise.resolve({ size: content.length, isFile: () => true }),
        read: (into: Uint8Array, offset: number, length: number, position: number) => {
          const part = content.subarray(position, position + length);
          into.set(part, offset);
          return Promise.resolve({ bytesRead: part.length });
        },
        close: () => Promise.resolve(),
      }) as unknown as fs.FileHandle;
    const store = (content: Uint8Array): SnapshotFolder =>
      new SnapshotFolder(folder, { files: { ...fs, open: () => Promise.resolve(handle(content)) } });
    expect((await store(bytes).load())?.tensors).toEqual(tensors);
    for (let bit = 0; bit < 8 * bytes.length; bit++) {
      const flipped = Uint8Array.from(bytes);
      flipped[bit >> 3] ^= 1 << (bit & 7);
      const outcome = await store(flipped)
        .load()
        .catch((error: unknown) => error);
      if (!isShoalError(outcome) || !outcome.message.includes(path)) expect.fail(`bit ${bit} of ${8 * bytes.length} went unnoticed`);
    }
    for (const [what, content] of [
      ['shorter', bytes.subarray(0, -1)],
      ['longer', Buffer.concat([bytes, Uint8Array.of(0)])],
      ['empty', new Uint8Array()],
    ] as const) {
      await expect(store(content).load(), what).rejects.toMatchObject({ code: 'protocol' });
    }
  });

  it('refuses a second save at the same time, and a folder that cannot be one', async () => {
    const store = new SnapshotFolder(folder);
    const first = store.save(version(1));
    await expect(store.save(version(2))).rejects.toMatchObject({ code: 'usage' });
    await first;
    expect(versionOf(await store.load())).toBe(1);
    await fs.writeFile(join(folder, 'file'), '');
    await expect(new SnapshotFolder(join(folder, 'file')).save(version(1))).rejects.toMatchObject({ code: 'system' });
    await expect(new SnapshotFolder(join(folder, 'file')).load()).rejects.toMatchObject({ code: 'system' });
  });
});
