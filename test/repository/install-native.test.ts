/** The installation of the addon where it cannot succeed: one clear line, never a failure. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { unportable } from '../../scripts/native-build.mjs';
import { repositoryRoot } from '../../scripts/repository.ts';
import { nativeBinary, rankProgram } from '../../src/memory/native.ts';

const root = temporaryFolder('install', afterAll);
for (const part of ['native', 'scripts', 'src', 'package.json']) cpSync(join(repositoryRoot, part), join(root, part), { recursive: true });
symlinkSync(join(repositoryRoot, 'node_modules'), join(root, 'node_modules'));

function install(env: Record<string, string>): { status: number | null; lines: string[] } {
  const { SHOAL_NATIVE: _, ...inherited } = process.env;
  const run = spawnSync(process.execPath, [join(root, 'scripts/install-native.mjs')], { encoding: 'utf8', env: { ...inherited, ...env } });
  return { status: run.status, lines: run.stdout.trim().split('\n') };
}

describe.skipIf(process.platform !== 'linux')('scripts/install-native.mjs (skipped: the addon needs Linux)', () => {
  it('names the missing tools, the consequences and the way to get them', () => {
    const { status, lines } = install({ PATH: join(root, 'nowhere'), CXX: 'no-such-compiler' });
    expect(status).toBe(0);
    expect(lines).toHaveLength(1);
    for (const part of ['C++ compiler', 'make', 'python3', 'slower kernels', 'apt-get install']) expect(lines[0]).toContain(part);
    expect(existsSync(join(root, 'build/Release/shoal.node'))).toBe(false);
  });

  it('a job without it says so once, and how to get it for the package manager in use', () => {
    const package_ = join(root, 'node_modules_of_a_project/node_modules/shoal');
    for (const part of ['dist', 'package.json']) cpSync(join(repositoryRoot, part), join(package_, part), { recursive: true });
    symlinkSync(join(repositoryRoot, 'node_modules'), join(package_, 'node_modules'));
    const script = join(root, 'join.mjs');
    const index = JSON.stringify(pathToFileURL(join(package_, 'dist/index.js')).href);
    writeFileSync(script, `const { initProcessGroup } = await import(${index});\nawait (await initProcessGroup()).destroy();\n`);
    const { SHOAL_NATIVE: _, ...inherited } = process.env;
    const started = (env: Record<string, string>): string =>
      spawnSync(process.execPath, [join(package_, 'dist/tools/cli/main.js'), 'run', '-q', '-n', '3', script], {
        encoding: 'utf8',
        env: { ...inherited, SHOAL_SLOW_MS: '600000', ...env },
      }).stderr;
    const warning = started({ npm_config_user_agent: 'pnpm/10.2.0 npm/? node/v20' });
    expect(warning.match(/share no memory and compute in JavaScript/g)).toHaveLength(1);
    expect(warning).toContain('run pnpm exec shoal compile, which compiles it or says what is missing');
    expect(started({ SHOAL_NATIVE: '0' })).toBe('');
  });

  it('is a command, which fails where nothing was compiled', () => {
    const { SHOAL_NATIVE: _, ...inherited } = process.env;
    const compile = (env: Record<string, string>): ReturnType<typeof spawnSync> =>
      spawnSync(process.execPath, [join(repositoryRoot, 'dist/tools/cli/main.js'), 'compile'], {
        encoding: 'utf8',
        env: { ...inherited, ...env },
      });
    expect(compile({ SHOAL_NATIVE: '0' })).toMatchObject({ status: 1, stdout: 'shoal: native addon skipped: SHOAL_NATIVE=0\n' });
  });

  it('does nothing with SHOAL_NATIVE=0', () => {
    expect(install({ SHOAL_NATIVE: '0' })).toEqual({ status: 0, lines: ['shoal: native addon skipped: SHOAL_NATIVE=0'] });
  });
});

describe('binaries', () => {
  it('that are published need nothing that Node.js 20 does not: the compiled one is made as they are', (context) => {
    const [addon, program] = [nativeBinary, rankProgram];
    if (!existsSync(addon)) return context.skip('the addon is not compiled');
    if (!readFileSync(join(repositoryRoot, 'build/native.stamp'), 'utf8').includes('portable'))
      return context.skip('there is no static libstdc++');
    expect([unportable(addon), unportable(program)]).toEqual([undefined, undefined]);
    // The check is able to refuse.
    expect(unportable(addon, { floor: '2.10' })).toMatch(/needs .*GLIBC_2\.17, .*the floor is glibc 2\.10/);
  });
});
