import { existsSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { temporaryFolder } from '../testing/temporary-folder.ts';
import { keepSeldomCode, loadBundle } from './cached-code.ts';

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

const code = `const later_ = module.importLater, { six } = require('./y.js'), { join } = require('node:path');
exports.seven = () => six + 1; exports.path = () => join('a', 'b'); exports.place = module.url; exports.later = () => later_('./z.js');`;

interface Exported {
  seven(): number;
  path(): string;
  readonly place: string;
  later(): Promise<unknown>;
}

function bundleIn(folder: string): { load(): Exported; cached(): string[] } {
  const file = join(folder, 'x.cjs');
  writeFileSync(file, code);
  const url = pathToFileURL(join(folder, 'x.js')).href;
  const importLater = (name: string): Promise<string> => Promise.resolve(`${name}, imported`);
  const bundle = { require: createRequire(file), url, hash: 'abc', imports: { './y.js': { six: 6 } }, importLater };
  const cached = (): string[] => readdirSync(folder).filter((name) => name !== 'x.cjs');
  return { load: () => loadBundle(bundle) as Exported, cached };
}

it('code has its imports, those that it makes later, and its place', async () => {
  const folder = temporaryFolder('cached-code');
  const { load } = bundleIn(folder);
  const { seven, path, place, later } = load();
  expect([seven(), path(), place]).toEqual([7, 'a/b', pathToFileURL(join(folder, 'x.js')).href]);
  expect(await later()).toBe('./z.js, imported');
});

it('code that has run for a while is kept, once, and does the same from there', () => {
  const folder = temporaryFolder('cached-code');
  const { load, cached } = bundleIn(folder);
  load();
  expect(cached()).toEqual([]);
  vi.advanceTimersByTime(1000);
  const name = `x.cjs-abc-${process.version}-${process.arch}.cache`;
  expect(cached()).toEqual([name]);
  const kept = readFileSync(join(folder, name));
  expect(load().seven()).toBe(7);
  vi.advanceTimersByTime(1000);
  expect(readFileSync(join(folder, name))).toEqual(kept);
});

it('code that runs seldom is kept once it has run, and read instead of the first', () => {
  const folder = temporaryFolder('cached-code');
  const { load, cached } = bundleIn(folder);
  const bundle = load();
  vi.advanceTimersByTime(1000);
  const [first] = cached();
  bundle.path();
  keepSeldomCode();
  vi.advanceTimersByTime(1000);
  const all = first.replace(/cache$/, 'seldom.cache');
  expect(cached().sort()).toEqual([first, all]);
  rmSync(join(folder, first));
  expect(load().path()).toBe('a/b');
  vi.advanceTimersByTime(1000);
  expect(cached()).toEqual([all]);
});

it.each([
  ['nothing', () => Buffer.alloc(0)],
  ['cut off', (kept: Buffer) => kept.subarray(0, kept.length >> 1)],
  ['of other code', (kept: Buffer) => Buffer.from(kept).fill(1, 8, 12)],
])('code runs when what was kept is %s', (_, spoil) => {
  const folder = temporaryFolder('cached-code');
  const { load, cached } = bundleIn(folder);
  load();
  vi.advanceTimersByTime(1000);
  const path = join(folder, cached()[0]);
  writeFileSync(path, spoil(readFileSync(path)));
  expect(load().seven()).toBe(7);
});

it('code runs where nothing can be kept: another process is at it, or the folder is gone', () => {
  const folder = temporaryFolder('cached-code');
  const { load, cached } = bundleIn(folder);
  const part = `x.cjs-abc-${process.version}-${process.arch}.cache.part`;
  writeFileSync(join(folder, part), '');
  expect(load().seven()).toBe(7);
  vi.advanceTimersByTime(1000);
  expect(cached()).toEqual([part]);
  rmSync(join(folder, part));
  load();
  rmSync(folder, { recursive: true });
  vi.advanceTimersByTime(1000);
  expect(existsSync(folder)).toBe(false);
});

it('a process that was killed while it kept code keeps no other from it', () => {
  const folder = temporaryFolder('cached-code');
  const { load, cached } = bundleIn(folder);
  const name = `x.cjs-abc-${process.version}-${process.arch}.cache`;
  writeFileSync(join(folder, `${name}.part`), 'a part');
  const longAgo = Date.now() / 1000 - 120;
  utimesSync(join(folder, `${name}.part`), longAgo, longAgo);
  load();
  vi.advanceTimersByTime(1000);
  expect(cached()).toEqual([name]);
  expect(load().seven()).toBe(7);
});
