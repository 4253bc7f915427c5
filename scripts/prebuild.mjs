// Makes the addon and shoal-rank for every platform that the package serves without a compiler: prebuilds/<platform>-<arch>, named as
// node-gyp-build looks for them. `npm run prebuilds`, before `npm pack` by itself; names of architectures are the only ones made.
//
// A platform whose compiler is not there is left out and named; with --all, before `npm publish`, that is an error. Each binary
// is stripped, and refused when it needs a newer glibc than the floor, or a library that a bare system lacks.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { binaries, compileNative, missingTools, root, sourcesHash, unportable } from './native-build.mjs';

const targets = [
  { arch: 'x64', prefix: process.arch === 'x64' ? '' : 'x86_64-linux-gnu-', package: 'g++-x86-64-linux-gnu' },
  { arch: 'arm64', prefix: process.arch === 'arm64' ? '' : 'aarch64-linux-gnu-', package: 'g++-aarch64-linux-gnu' },
];

const all = process.argv.includes('--all');
const chosen = process.argv.slice(2).filter((each) => each !== '--all');
const hash = sourcesHash();
for (const target of targets) {
  if (chosen.length > 0 && !chosen.includes(target.arch)) continue;
  const problem = process.platform === 'linux' ? prebuild(target) : `needs Linux, this is ${process.platform}`;
  if (problem !== undefined) {
    console.log(`prebuild: linux-${target.arch}: ${problem}`);
    if (all) process.exitCode = 1;
  }
}

function prebuild({ arch, prefix, package: debianPackage }) {
  const target = join(root, 'prebuilds', `linux-${arch}`);
  const stampFile = join(root, 'build', `prebuilt-linux-${arch}.stamp`);
  const files = binaries.prebuilt.map((name) => join(target, name));
  const stamp = `${hash}\n`;
  if (files.every((file) => existsSync(file)) && existsSync(stampFile) && readFileSync(stampFile, 'utf8') === stamp) return undefined;
  rmSync(target, { recursive: true, force: true });
  const missing = missingTools([
    [`${prefix}g++ (apt-get install ${prefix === '' ? 'g++' : debianPackage})`, [`${prefix}g++`]],
    ['make', ['make']],
    ['python3', ['python3']],
  ]);
  if (missing.length > 0) return `left out: ${missing.join(', ')} not found`;
  const environment = prefix === '' ? {} : { CC: `${prefix}gcc`, CXX: `${prefix}g++` };
  const failure = compileNative({ arch, portable: true, target, names: binaries.prebuilt, environment });
  const problem = failure?.reason ?? files.map((file) => finish(file, prefix)).find((each) => each !== undefined);
  if (problem !== undefined) {
    rmSync(target, { recursive: true, force: true });
    process.exitCode = 1;
    return problem;
  }
  mkdirSync(join(root, 'build'), { recursive: true });
  writeFileSync(stampFile, stamp);
  for (const file of files) console.log(`prebuild: ${file}: ${statSync(file).size} bytes`);
  return undefined;
}

/** Strips a binary and checks its demands on the system. @returns the fault, if any. */
function finish(file, prefix) {
  const { status, stderr, error } = spawnSync(`${prefix}strip`, ['--strip-all', file], { encoding: 'utf8' });
  if (status !== 0) return `${prefix}strip failed: ${error?.message ?? stderr}`;
  return unportable(file, { objdump: `${prefix}objdump` });
}
