import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

/** A new folder, which goes with all that is in it when the test has ended; or, outside of tests, when `atEnd` runs what it is given. */
export function temporaryFolder(name: string, atEnd: (remove: () => void) => void = (remove) => onTestFinished(remove)): string {
  const folder = mkdtempSync(join(tmpdir(), `shoal-${name}-`));
  atEnd(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
