/** The browser that tests open pages in. Debian's package `chromium` has it. */
import { existsSync } from 'node:fs';
import { chromium, type Browser } from 'playwright-core';

const executablePath = '/usr/bin/chromium';
export const browserMissing = !existsSync(executablePath);
/** The end of the title of a test that needs the browser: why the test is skipped, if it is. */
export const skippedWithoutBrowser = browserMissing ? ` (skipped: no ${executablePath}: apt-get install chromium)` : '';

export function launchBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath, args: ['--no-sandbox'] });
}
