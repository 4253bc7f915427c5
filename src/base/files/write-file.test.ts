import { lstatSync, mkdtempSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { writeFileAt, writeFileWhole } from './write-file.ts';

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
});
