/** A run's folder with its page: `report.html` beside the files that it is made of. */
import { basename, join, resolve } from 'node:path';
import { writeFileAt } from '../../base/files/write-file.ts';
import { buildReport } from './build-report.ts';
import { reportPage } from './page.ts';
import { readRunFolder, type LauncherRecord } from './read-folder.ts';

export function writeLauncherRecord(folder: string, record: LauncherRecord): void {
  writeFileAt(join(folder, 'launcher.json'), `${JSON.stringify({ version: 1, ...record }, null, 2)}\n`);
}

/** @param target Default: `report.html` in the folder. @returns where the page is.
 *  @throws ShoalError `usage` when the folder has nothing of a run; `system` when the page cannot be written. */
export function writeReport(folder: string, target = join(folder, 'report.html')): string {
  return writeFileAt(target, reportPage(buildReport(basename(resolve(folder)), readRunFolder(folder))));
}
