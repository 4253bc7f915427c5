/** `shoal run --report` with real processes, and its page in a real browser. */
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { rankScript, shoal, shoalRun } from '../fixtures/launch-harness.ts';
import { browserMissing, launchBrowser, skippedWithoutBrowser } from '../support/browser.ts';

const tenLines = join(import.meta.dirname, '../../examples/ten-lines.ts');

const directory = temporaryFolder('report', afterAll);

it('a run with --report-dir leaves its page, and says where', async () => {
  const folder = join(directory, 'good');
  const { code, stderr } = await shoalRun('-n', '2', '--report-dir', folder, tenLines).ended;
  expect(code).toBe(0);
  expect(stderr).toContain(`shoal: report: ${folder}/report.html\n`);
  expect(await readdir(folder)).toEqual(['launcher.json', 'report.html', 'trace-rank-0.json', 'trace-rank-1.json']);
  const { stdout } = await shoal(['report', folder, '--json']).ended;
  expect(JSON.parse(stdout)).toMatchObject({ failure: null, ranks: [{ rank: 0 }, { rank: 1 }], warnings: [] });
});

it('a run that fails has its cause on the first line', async () => {
  const folder = join(directory, 'bad');
  const { code } = await shoalRun('-n', '2', '--grace', '50ms', '--report-dir', folder, rankScript, 'exit', '1', '7').ended;
  expect(code).toBe(7);
  const { stdout } = await shoal(['report', folder, '--json']).ended;
  expect(JSON.parse(stdout).failure.headline).toMatch(/^rank 1 exited with code 7/);
});

it('a rank that throws is the cause, with the place in the script, and not missed beside its trace', async () => {
  const folder = join(directory, 'threw');
  const script = join(directory, 'throws.mjs');
  const source = `import { initProcessGroup } from 'shoal';
const group = await initProcessGroup();
const x = group.tensor('float32', [1000]);
for (let step = 0; step < 8; step++) {
  await group.allReduce(x);
  if (group.rank === 1 && step === 6) throw new RangeError('the loss is NaN');
}
`;
  await writeFile(script, source.replace("'shoal'", JSON.stringify(import.meta.resolve('../../dist/index.js'))));
  expect((await shoalRun('-n', '3', '--report-dir', folder, script).ended).code).toBe(1);
  const { failure, ranks } = JSON.parse((await shoal(['report', folder, '--json']).ended).stdout);
  expect(failure.headline).toMatch(/^rank 1 exited with code 1, .*: RangeError: the loss is NaN$/);
  expect(failure.lines.slice(0, 2)).toEqual([
    expect.stringMatching(/throws\.mjs:6$/),
    expect.stringContaining("throw new RangeError('the loss is NaN')"),
  ]);
  expect(failure.lines.join('\n')).not.toContain('left no record');
  expect(ranks.map(({ rank }: { rank: number }) => rank)).toEqual([0, 1, 2]);
});

it('ranks whose script throws leave their timeline, and the error that they were told', async () => {
  const folder = join(directory, 'thrown');
  const script = join(directory, 'disagree.ts');
  const source = `import { initProcessGroup } from 'shoal';
const group = await initProcessGroup();
const x = group.tensor('float32', [1000]);
for (let i = 0; i < 5; i++) await group.allReduce(x);
await (group.rank === 1 ? group.broadcast(x) : group.allReduce(x));
`;
  await writeFile(script, source.replace("'shoal'", JSON.stringify(import.meta.resolve('../../dist/index.js'))));
  expect((await shoalRun('-n', '2', '--report-dir', folder, script).ended).code).toBe(1);
  const { failure, rows } = JSON.parse((await shoal(['report', folder, '--json']).ended).stdout);
  expect(failure.headline).toBe("ranks 0, 1: ranks of group 'world' disagree on collective #5:");
  expect(new Set(rows.map(({ rank }: { rank: number }) => rank))).toEqual(new Set([0, 1]));
});

it('a folder without a run is refused', async () => {
  const { code, stderr } = await shoal(['report', join(directory, 'nowhere')]).ended;
  expect({ code, stderr }).toMatchObject({ code: 2, stderr: expect.stringContaining('nowhere cannot be read') });
  const blocked = await shoalRun('--report-dir', '/proc/nothing', tenLines).ended;
  expect({ code: blocked.code, stderr: blocked.stderr }).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('--report-dir /proc/nothing cannot be made'),
  });
  const again = await shoalRun('--report-dir', join(directory, 'good'), tenLines).ended;
  expect(again).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('has files of another run (launcher.json); name another folder'),
  });
  const { stderr: own } = await shoal(['run', '-q', '--report', tenLines], { cwd: directory }).ended;
  expect(own).toMatch(/^shoal: report: .*\/runs\/\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{3}\/report\.html\n$/);
});

describe.skipIf(browserMissing)(`the page in a browser${skippedWithoutBrowser}`, () => {
  let browser: Browser;
  beforeAll(async () => {
    browser = await launchBrowser();
  });
  afterAll(() => browser.close());

  it('draws, zooms, finds and fits, in light and dark, wide and narrow, without an error', async () => {
    const folder = join(directory, 'good');
    for (const colorScheme of ['light', 'dark'] as const) {
      for (const width of [1280, 800, 380]) {
        await using page = await browser.newPage({ colorScheme, viewport: { width, height: 900 } });
        const problems: string[] = [];
        page.on('console', (message) => problems.push(message.text()));
        page.on('pageerror', (error) => problems.push(error.message));
        page.on('request', (request) => request.url().startsWith('file:') || problems.push(request.url()));
        await page.goto(`file://${folder}/report.html`);
        await page.waitForSelector('canvas');
        expect(await page.locator('h2').allTextContents()).toEqual(expect.arrayContaining(['Timeline', 'Ranks', 'Operations']));
        expect(await page.locator('.figures b').first().textContent()).toBe('2');
        expect(await page.locator('#timeline > p').textContent()).toMatch(
          width > 600 ? /ctrl and wheel/ : /^Drag to move, \+ and − to zoom/,
        );
        // Something is drawn, and it changes with the visible range.
        const drawn = (): Promise<string> => page.evaluate('document.querySelector("canvas").toDataURL()');
        const whole = await drawn();
        await page.getByTitle('zoom in').click();
        await expect.poll(drawn).not.toBe(whole);
        await page.getByTitle('the whole run').click();
        await expect.poll(drawn).toBe(whole);
        await page.getByRole('searchbox').fill('no such thing');
        await expect.poll(drawn).not.toBe(whole);
        const [content, sight] = (await page.evaluate('[document.documentElement.scrollWidth, innerWidth]')) as [number, number];
        expect(content, `${width} wide`).toBeLessThanOrEqual(sight);
        expect(problems).toEqual([]);
      }
    }
  });

  it('runs no code from a trace', async () => {
    const folder = join(directory, 'good');
    const html = await readFile(join(folder, 'report.html'), 'utf8');
    const page = await browser.newPage();
    await page.setContent(html.replace('<main', '<script>globalThis.ran = true</script><img src=x onerror="globalThis.ran = true"><main'));
    await page.waitForSelector('canvas');
    expect(await page.evaluate('globalThis.ran')).toBeUndefined();
    await page.close();
  });
});
