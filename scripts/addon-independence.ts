/** The test files that the pass without the native addon need not repeat, because nothing they import reaches it. Pure functions over
 *  sources. */
import { posix } from 'node:path';
import type { SourceFile } from './house-rules.ts';

const addonLoader = 'src/memory/native.ts';
/** The package's own name leads to dist/, and from there anywhere. */
const elsewhere = /['"]node:(child_process|worker_threads|cluster)['"]|['"]shoal(\/[\w-]+)*['"]/;
const relativePath = /['"`](\.{1,2}\/[^'"`\n]+)['"`]/g;

/** Paths of the test files among `files`, which are all sources of the repository, that reach neither the addon's loader nor
 *  another process or thread; sorted. It errs on the side of repeating: every relative path in quotes counts as an import, and whoever
 *  may start a process or a thread, which runs what is not seen here, counts as dependent. */
export function testsIndependentOfAddon(files: readonly SourceFile[]): string[] {
  const textOf = new Map(files.map(({ path, text }) => [path, text]));
  const independent = (test: string): boolean => {
    const reached = new Set([test]);
    for (const path of reached) {
      const text = textOf.get(path);
      if (path === addonLoader || text === undefined || elsewhere.test(text)) return false;
      for (const [, specifier] of text.matchAll(relativePath)) {
        const target = posix.join(posix.dirname(path), specifier);
        // Built JavaScript is what threads are started from; other files are data.
        if (textOf.has(target) || target.endsWith('.js')) reached.add(target);
      }
    }
    return true;
  };
  return [...textOf.keys()].filter((path) => path.endsWith('.test.ts') && independent(path)).sort();
}
