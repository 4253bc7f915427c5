/** The control groups that limit this process. Linux: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1. On other systems there are
 *  none. */
import { readFileSync } from 'node:fs';

/** Reads a text file; undefined when it cannot be read. */
export type ReadText = (path: string) => string | undefined;

export interface ControlGroup {
  /** Version 2, where one hierarchy has all controllers. */
  readonly isUnified: boolean;
  /** `/a/b`. */
  readonly name: string;
  /** The folder of its files. */
  readonly folder: string;
}

/** The group of this process and all above it: each may have the limit that counts. Inside a container the path may not exist below
 *  the mount, whose root then is the group; so the walk always ends at the root. */
export function* controlGroups(controller: 'cpu' | 'memory', read: ReadText): Generator<ControlGroup> {
  for (const line of (read('/proc/self/cgroup') ?? '').split('\n')) {
    // A line is hierarchy:controllers:path; version 2 is `0::/path`.
    const [, controllers, path] = /^\d+:([^:]*):(\/.*)$/.exec(line) ?? [];
    if (controllers === undefined || path === undefined) continue;
    const isUnified = controllers === '';
    if (!isUnified && !controllers.split(',').includes(controller)) continue;
    const mount = isUnified ? '/sys/fs/cgroup' : `/sys/fs/cgroup/${controller}`;
    const names = path.split('/').filter((name) => name !== '');
    for (let depth = names.length; depth >= 0; depth--) {
      const below = names.slice(0, depth).map((name) => `/${name}`);
      yield { isUnified, name: below.join('') || '/', folder: mount + below.join('') };
    }
  }
}

export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}
