import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';

/** A new folder, which is removed with its contents when the test has ended; outside of tests, when `atEnd` calls its argument. */
export function temporaryFolder(name: string, atEnd: (remove: () => void) => void = (remove) => onTestFinished(remove)): string {
  const folder = mkdtempSync(join(tmpdir(), `shoal-${name}-`));
  atEnd(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}
