// Compiles the native addon for this machine into build/Release, where it is found before a prebuilt one: `shoal compile` for
// users, part of `npm ci` in the repository.
//
// Without --required it never fails: everything works without the addon, only slower and without memory shared between processes.
// When it cannot build, it prints the missing tools, the consequences and the way to get them. It must not know what the addon
// does. SHOAL_NATIVE=0 skips the build.
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { spawnSync } from 'node:child_process';
import { binaries, compileNative, missingTools, root, sourcesHash } from './native-build.mjs';

const required = process.argv.includes('--required');
const release = join(root, 'build', 'Release');
const stampFile = join(root, 'build', 'native.stamp');

const lost = 'Shoal works without it, with slower kernels and no memory shared between processes (ranks talk TCP)';

main();

function main() {
  if (process.env.SHOAL_NATIVE === '0') return fail('skipped: SHOAL_NATIVE=0');
  if (process.platform !== 'linux') return fail(`not built: it needs Linux, this is ${process.platform}. ${lost}.`);

  const portable = hasStaticLibraries();
  const stamp = `${sourcesHash()} ${process.arch} ${portable ? 'portable' : 'for this machine'}\n`;
  const isThere = binaries.built.every((name) => existsSync(join(release, name)));
  if (isThere && existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp) return say('is up to date');

  const missing = missingTools([
    ['a C++ compiler (g++)', [process.env.CXX ?? 'g++', 'c++']],
    ['make', [process.env.MAKE ?? 'make', 'gmake']],
    ['python3', [process.env.PYTHON ?? process.env.npm_config_python ?? 'python3', 'python']],
  ]);
  if (missing.length > 0) {
    return fail(`not built: ${missing.join(', ')} not found. ${lost}. To get it: apt-get install g++ make python3, then ${again()}.`);
  }

  mkdirSync(release, { recursive: true });
  rmSync(stampFile, { force: true });
  say(`is compiled for ${process.platform}-${process.arch}, about a minute`);
  const problem = compileNative({ arch: process.arch, portable, target: release, names: binaries.built });
  if (problem?.missing) return fail(`not built: ${problem.reason}. ${lost}. To get it: npm install node-gyp, then ${again()}.`);
  if (problem !== undefined) return fail(`not built: ${problem.reason}. ${lost}. To try again: ${again()}.`);
  writeFileSync(stampFile, stamp);
  return say(`built: ${join(release, binaries.built[0])}`);
}

/** True if libraries can be linked statically, as in the prebuilt binaries, so that the tested ones are like the published; some
 *  distributions have no static libstdc++. */
function hasStaticLibraries() {
  const { stdout } = spawnSync(process.env.CXX ?? 'g++', ['-print-file-name=libstdc++.a'], { encoding: 'utf8' });
  return (process.arch === 'x64' || process.arch === 'arm64') && existsSync((stdout ?? '').trim());
}

function again() {
  return existsSync(join(root, 'vitest.config.ts')) ? 'npm ci' : 'this command again';
}

function say(text) {
  console.log(`shoal: native addon ${text}`);
}

function fail(text) {
  say(text);
  if (required) process.exitCode = 1;
}
