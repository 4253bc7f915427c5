import { lstatSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { writeFileAt, writeFileWhole, writeOrWarn } from './write-file.ts';

const folderOf = (): string => mkdtempSync(join(tmpdir(), 'shoal-write-'));

describe('a file that is written', () => {
  it('gets its missing folders, replaces an older file, and leaves nothing beside it', () => {
    const folder = join(folderOf(), 'new', 'folder');
    const path = join(folder, 'a.txt');
    expect(writeFileAt(path, 'first')).toBe(path);
    writeFileWhole(folder, 'a.txt', ['sec', 'ond']);
    expect(readFileSync(path, 'utf8')).toBe('second');
    expect(readdirSync(folder)).toEqual(['a.txt']);
  });

  it('keeps links and devices what they are', () => {
    const folder = folderOf();
    const [target, link, nothing] = ['target', 'link', 'nothing'].map((name) => join(folder, name)) as [string, string, string];
    writeFileSync(target, 'before, and longer');
    symlinkSync(target, link);
    symlinkSync('/dev/null', nothing);
    writeFileAt(link, 'after');
    writeFileAt(nothing, 'x');
    expect(lstatSync(link).isSymbolicLink()).toBe(true);
    expect(readFileSync(target, 'utf8')).toBe('after');
    expect(lstatSync(nothing).isSymbolicLink()).toBe(true);
    expect(lstatSync('/dev/null').isCharacterDevice()).toBe(true);
  });

  it('is named in the error when it cannot be written', () => {
    const path = join(folderOf(), 'file');
    writeFileSync(path, '');
    expect(() => writeFileAt(join(path, 'x', 'y'), '')).toThrow(
      expect.objectContaining({ code: 'system', message: expect.stringContaining(path) }),
    );
  });

  it('that a job can do without is lost with one warning', () => {
    const path = join(folderOf(), 'file');
    const warnings: string[] = [];
    const log = { warn: (message: string) => void warnings.push(message) };
    writeOrWarn(log, () => writeFileAt(path, 'x'));
    writeOrWarn(log, () => writeFileAt(join(path, 'y'), 'x'));
    expect(readFileSync(path, 'utf8')).toBe('x');
    expect(warnings).toEqual([expect.stringMatching(new RegExp(`^cannot write ${path}/y: .*; the job goes on without it$`))]);
    writeOrWarn(log, () => writeFileAt('/dev/full', 'x'));
    expect(warnings[1]).toMatch(/^cannot write \/dev\/full: ENOSPC.*; make room there; /);
  });
});
