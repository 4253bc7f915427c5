/** The page of a run of 256 ranks, of more spans than a page can hold. The cost of a gigabyte is measured by bench/report/run.ts. */
import { mkdtempSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { writeSyntheticRun } from '../../bench/report/synthetic-run.ts';
import { buildReport } from '../../src/tools/report/build-report.ts';
import { reportPage } from '../../src/tools/report/page.ts';
import { readRunFolder } from '../../src/tools/report/read-folder.ts';
import type { ReportData } from '../../src/tools/report/data/report-data.ts';
import { browserMissing, launchBrowser, skippedWithoutBrowser } from '../support/browser.ts';

const run = { ranks: 256, ranksPerHost: 8, steps: 40 };
/** Limits of a page; the run has some 46,000 spans. */
const limits = { spansMax: 20_000, valuesMax: 1000 };

const folder = temporaryFolder('large', afterAll);
let data: ReportData;
beforeAll(() => {
  writeSyntheticRun(folder, run);
  data = buildReport('large', readRunFolder(folder), limits);
  writeFileSync(join(folder, 'report.html'), reportPage(data));
});

it('tables count every span; what is drawn has a bound, and rows say how busy they were', () => {
  expect(data.ranks).toHaveLength(256);
  expect(data.operations.map(({ bytes, calls, ranks }) => [bytes, calls, ranks]).sort(([a], [b]) => a - b)).toEqual(
    [1, 2, 4].map((mib) => [mib << 20, 40, 256]),
  );
  expect(data.ranks.every(({ communicatingUs, waitingUs }) => communicatingUs > waitingUs && waitingUs > 0)).toBe(true);
  const drawn = data.rows.reduce((sum, { starts }) => sum + starts.length, 0);
  expect(drawn).toBeLessThanOrEqual(limits.spansMax);
  expect(drawn).toBeGreaterThan(limits.spansMax * 0.9);
  expect(data.warnings).toEqual([expect.stringMatching(/^\d+ of the shortest spans are not drawn; tables count all$/)]);
  expect(data.rows).toHaveLength(3 * 256);
  expect(data.rows.every(({ starts, density }) => starts.length < 40 || density !== undefined)).toBe(true);
  // Numbers that differ from call to call do not count as texts.
  expect(data.details.length).toBeLessThan(256 * 8);
  expect(statSync(join(folder, 'report.html')).size).toBeLessThan(6e6);
});

it('matrices are of hosts', () => {
  expect(data.ends.map(({ name }) => name)).toEqual(Array.from({ length: 32 }, (_, host) => `node-${host}`));
  expect(data.links!.bytes[0].slice(0, 3)).toEqual([8 * 7 * (96 << 20), 8 * (8 << 20), 8 * (8 << 20)]);
  expect(data.waits).toHaveLength(32);
});

it('is the same however many times it is read, and as it would be of files read whole', () => {
  const small = mkdtempSync(join(folder, 'small-'));
  writeSyntheticRun(small, { ranks: 4, ranksPerHost: 2, steps: 50 });
  const streamed = buildReport('small', readRunFolder(small));
  expect(buildReport('small', readRunFolder(small))).toEqual(streamed);
  for (let rank = 0; rank < 4; rank++) {
    const path = join(small, `trace-rank-${rank}.json`);
    writeFileSync(path, JSON.stringify(JSON.parse(readFileSync(path, 'utf8'))));
  }
  expect(buildReport('small', readRunFolder(small))).toEqual(streamed);
});

describe.skipIf(browserMissing)(`in a browser${skippedWithoutBrowser}`, () => {
  it('opens, zooms, pans and scrolls through all ranks, and says what is where', async () => {
    const browser = await launchBrowser();
    try {
      await using page = await browser.newPage({ viewport: { width: 1280, height: 1200 } });
      const problems: string[] = [];
      page.on('console', (message) => problems.push(message.text()));
      page.on('pageerror', (error) => problems.push(error.message));
      await page.goto(`file://${folder}/report.html`);
      await page.waitForSelector('canvas');
      await use(page);
      expect(problems).toEqual([]);
    } finally {
      await browser.close();
    }
  });
});

async function use(page: Page): Promise<void> {
  const drawn = (): Promise<string> => page.evaluate('document.querySelector("canvas").toDataURL()');
  expect(await page.locator('.figures b').first().textContent()).toBe('256');
  const whole = await drawn();
  const box = (await page.locator('canvas').first().boundingBox())!;
  const middle = [box.x + box.width / 2, box.y + 60] as const;
  await page.mouse.move(...middle);
  await page.keyboard.down('Control');
  for (let turn = 0; turn < 5; turn++) await page.mouse.wheel(0, -500);
  await page.keyboard.up('Control');
  await expect.poll(drawn).not.toBe(whole);
  const zoomed = await drawn();
  await page.mouse.down();
  await page.mouse.move(middle[0] - 200, middle[1], { steps: 4 });
  await page.mouse.up();
  await expect.poll(drawn).not.toBe(zoomed);
  const panned = await drawn();
  await page.evaluate('document.querySelector(".rows").scrollTop = 1e6');
  await expect.poll(drawn).not.toBe(panned);
  await page.getByTitle('the whole run').click();
  // The last rank's rows are in sight: a search along its main thread finds a span.
  const { x, y, width, height } = (await page.locator('canvas').first().boundingBox())!;
  let across = width / 3;
  await expect
    .poll(async () => {
      across += 7;
      await page.mouse.move(x + across, y + height - 45);
      return await page.locator('.hover').textContent();
    })
    .toMatch(/^forward and backwardrank 255, main: [\d.]+ ms at [\d.]+ ms.*step \d+$/);
}
