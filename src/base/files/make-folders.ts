/** Makes folders one level at a time: the recursive mkdir of Node.js 20 never returns when a parent exists but refuses to hold
 *  anything, as /proc does. */
import { mkdirSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

/** Makes the folder and the missing ones above it. @throws errors of the file system. */
export function makeFolders(path: string): void {
  const whole = resolve(path);
  const missing: string[] = [];
  for (let each = whole; !statSync(each, { throwIfNoEntry: false })?.isDirectory(); each = dirname(each)) {
    missing.push(each);
    if (each === dirname(each)) break;
  }
  for (const each of missing.reverse()) {
    try {
      mkdirSync(each);
    } catch (error) {
      // Another process may have made it meanwhile.
      if (!statSync(each, { throwIfNoEntry: false })?.isDirectory()) throw error;
    }
  }
}
