/** Screenshots of every page and picture, at three widths, light and dark, for reviewers; and those that the docs show.
 *
 *    npx tsx scripts/screenshots.ts <folder>           all of them
 *    npx tsx scripts/screenshots.ts --docs             docs/images only
 *    npx tsx scripts/screenshots.ts --reviewed         test/reviewed, after they were reviewed: test/tools/pages.test.ts compares with them
 *
 *  Needs a built package and Debian's chromium. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium, type Browser } from 'playwright-core';
import { pageNames, reviewedHeight, reviewedWidth, samplePageUrl, writeSamplePages } from '../test/support/sample-pages.ts';
import { repositoryRoot } from './repository.ts';

const widths = [390, 900, 1600];
/** Screenshots in the docs: small enough to be read beside the text. */
const shown = [
  { name: 'report', width: 900, height: 760 },
  { name: 'report-failed', width: 900, height: 420 },
  { name: 'report-64', width: 900, height: 900 },
  { name: 'peers', width: 900, height: 760 },
  { name: 'plan', width: 1180, height: 600 },
] as const;

async function shoot(
  browser: Browser,
  page: {
    readonly url: string;
    readonly path: string;
    readonly width: number;
    readonly height: number;
    readonly dark?: boolean;
    readonly whole?: boolean;
    readonly scale?: number;
  },
): Promise<void> {
  const { url, path, width, height, dark = false, whole = false, scale = 1 } = page;
  await using tab = await browser.newPage({ colorScheme: dark ? 'dark' : 'light', viewport: { width, height }, deviceScaleFactor: scale });
  await tab.goto(url);
  await tab.waitForTimeout(500);
  await tab.screenshot({ path, fullPage: whole });
}

const [target] = process.argv.slice(2);
if (target === undefined) {
  console.error('usage: npx tsx scripts/screenshots.ts <folder> | --docs | --reviewed');
  process.exit(2);
}
const pages = mkdtempSync(join(tmpdir(), 'shoal-pages-'));
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox'] });
try {
  writeSamplePages(pages);
  const urlOf = (name: (typeof pageNames)[number]): string => samplePageUrl(pages, name);
  if (target === '--docs') {
    const folder = join(repositoryRoot, 'docs/images');
    mkdirSync(folder, { recursive: true });
    for (const { name, width, height } of shown)
      await shoot(browser, { url: urlOf(name), path: join(folder, `${name}.png`), width, height });
  } else if (target === '--reviewed') {
    for (const name of pageNames) {
      const path = join(repositoryRoot, 'test/reviewed', `${name}.png`);
      await shoot(browser, { url: urlOf(name), path, width: reviewedWidth, height: reviewedHeight, scale: 0.5 });
    }
  } else {
    mkdirSync(target, { recursive: true });
    for (const name of pageNames)
      for (const width of widths)
        for (const dark of [false, true]) {
          const path = join(target, `${name}-${width}-${dark ? 'dark' : 'light'}.png`);
          await shoot(browser, { url: urlOf(name), path, width, height: 900, dark, whole: true });
        }
  }
} finally {
  await browser.close();
  rmSync(pages, { recursive: true });
}
