/** Every page and picture in a real browser, at three widths, light and dark: nothing is cut off, lies over another text or is too faint,
 *  whatever the fonts; and each looks as it did when somebody has looked at it (`npx tsx scripts/screenshots.ts --reviewed`). */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { findFaults, squaresOf, watchCanvases } from '../support/page-faults.ts';
import { pageNames, reviewedHeight, reviewedWidth, samplePageUrl, writeSamplePages } from '../support/sample-pages.ts';
import { browserMissing, launchBrowser, skippedWithoutBrowser } from '../support/browser.ts';

const widths = [390, 900, 1600];
/** Largest mean difference over a picture's squares, of 255: fonts differ a little between machines. */
const differenceMax = 8;
/** Largest difference of one square: above it, something is there that was not, or has another colour. */
const squareMax = 110;

describe.skipIf(browserMissing)(`pages${skippedWithoutBrowser}`, () => {
  let browser: Browser;
  let folder: string;
  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'shoal-pages-'));
    writeSamplePages(folder);
    browser = await launchBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    rmSync(folder, { recursive: true });
  });

  /** Brightness of squares, computed in a page of its own: ours show no images. */
  async function squares(png: Buffer): Promise<number[][]> {
    await using page = await browser.newPage();
    return await page.evaluate<number[][]>(squaresOf(`data:image/png;base64,${png.toString('base64')}`));
  }

  async function open(name: (typeof pageNames)[number], colorScheme: 'light' | 'dark', problems: string[]): Promise<Page> {
    const page = await browser.newPage({ colorScheme, viewport: { width: reviewedWidth, height: reviewedHeight } });
    page.on('console', (message) => problems.push(message.text()));
    page.on('pageerror', (error) => problems.push(error.message));
    page.on('request', (request) => request.url().startsWith('file:') || problems.push(request.url()));
    await page.addInitScript(watchCanvases);
    await page.goto(samplePageUrl(folder, name));
    return page;
  }

  it.each(pageNames)('%s is whole, legible and as it was reviewed', async (name) => {
    for (const colorScheme of ['light', 'dark'] as const) {
      const problems: string[] = [];
      await using page = await open(name, colorScheme, problems);
      await painted(page);
      if (colorScheme === 'light') {
        const reviewed = readFileSync(join(import.meta.dirname, '../reviewed', `${name}.png`));
        const [now, before] = await Promise.all([await page.screenshot(), reviewed].map(squares));
        const differences = now.map((square, at) => Math.max(...square.map((value, channel) => Math.abs(value - before[at][channel]))));
        expect(differences.reduce((sum, each) => sum + each, 0) / differences.length).toBeLessThan(differenceMax);
        expect(Math.max(...differences)).toBeLessThan(squareMax);
      }
      for (const width of widths) {
        await page.setViewportSize({ width, height: reviewedHeight });
        await painted(page);
        await expect.poll(() => page.evaluate(findFaults), { message: `${colorScheme}, ${width} wide` }).toEqual([]);
      }
      expect(problems).toEqual([]);
    }
  });

  it('a page that has become worse is found', async () => {
    await using page = await open('plan', 'light', []);
    await page.evaluate(`
      const text = document.querySelector('svg text');
      text.setAttribute('x', '-20');
      text.style.fill = '#ccc';
      document.querySelectorAll('svg text')[1].setAttribute('y', Number(document.querySelectorAll('svg text')[2].getAttribute('y')));
      document.querySelectorAll('svg text')[1].setAttribute('x', Number(document.querySelectorAll('svg text')[2].getAttribute('x')));
    `);
    const faults = (await page.evaluate<string[]>(findFaults)).join('\n');
    expect(faults).toMatch(/is cut off/);
    expect(faults).toMatch(/lies over/);
    expect(faults).toMatch(/has a contrast of 1\.\d/);
  });

  it('curves show their names and values at the pointer', async () => {
    await using page = await open('peers', 'light', []);
    await painted(page);
    await page.locator('.u-over').hover();
    await expect.poll(() => page.locator('.u-legend .u-value').first().textContent()).toMatch(/^[\d.]+ [KM]?i?B$/);
    expect(await page.locator('.u-legend .u-label').allTextContents()).toContain('memory bound');
  });
});

async function painted(page: Page): Promise<void> {
  await page.evaluate('new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 50))))');
}
