/** Builds of earlier commits, each in a clone of its own, with the packages that it names. They stay in node_modules/.cache. */
import { spawnSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const repository = fileURLToPath(new URL('../..', import.meta.url));

/** The folder of a commit's build, which may not be there yet. */
export function folderOf(commit: string): string {
  return join(repository, 'node_modules/.cache/shoal-bench', commit);
}

/** Builds a commit unless it is there. @returns its folder. Throws the reason if it cannot. */
export function buildOf(commit: string): string {
  const folder = folderOf(commit);
  if (existsSync(folder)) return folder;
  const steps: readonly (readonly string[])[] = [
    ['git', 'clone', '--quiet', '--no-checkout', repository, folder],
    ['git', '-C', folder, 'checkout', '--quiet', commit],
    ['npm', 'ci', '--ignore-scripts', '--no-audit', '--no-fund'],
    [process.execPath, join(folder, 'scripts/install-native.mjs')],
    [process.execPath, join(folder, 'scripts/build.mjs')],
  ];
  for (const [command, ...args] of steps) {
    const { status, stdout, stderr } = spawnSync(command, args, { encoding: 'utf8', cwd: existsSync(folder) ? folder : repository });
    if (status === 0) continue;
    rmSync(folder, { recursive: true, force: true });
    throw new Error(`${command} ${args.join(' ')} failed: ${(stderr || stdout).trim()}`);
  }
  return folder;
}
