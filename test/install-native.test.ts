/** The installation of the addon where it cannot succeed: one clear line, never a failure. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../scripts/repository.ts';

const root = mkdtempSync(join(tmpdir(), 'shoal-install-'));
for (const part of ['native', 'binding.gyp', 'scripts', 'package.json'])
  cpSync(join(repositoryRoot, part), join(root, part), { recursive: true });
symlinkSync(join(repositoryRoot, 'node_modules'), join(root, 'node_modules'));
afterAll(() => rmSync(root, { recursive: true }));

function install(env: Record<string, string>): { status: number | null; lines: string[] } {
  const { SHOAL_NATIVE: _, ...inherited } = process.env;
  const run = spawnSync(process.execPath, [join(root, 'scripts/install-native.mjs')], { encoding: 'utf8', env: { ...inherited, ...env } });
  return { status: run.status, lines: run.stdout.trim().split('\n') };
}

describe.skipIf(process.platform !== 'linux')('scripts/install-native.mjs (skipped off Linux: the addon needs it)', () => {
  it('says which tools are missing, what is lost and how to get them', () => {
    const { status, lines } = install({ PATH: join(root, 'nowhere'), CXX: 'no-such-compiler' });
    expect(status).toBe(0);
    expect(lines).toHaveLength(1);
    for (const part of ['C++ compiler', 'make', 'python3', 'slower kernels', 'apt-get install']) expect(lines[0]).toContain(part);
    expect(existsSync(join(root, 'build/Release/shoal.node'))).toBe(false);
  });

  it('does nothing with SHOAL_NATIVE=0', () => {
    expect(install({ SHOAL_NATIVE: '0' })).toEqual({ status: 0, lines: ['shoal: native addon skipped: SHOAL_NATIVE=0'] });
  });
});
