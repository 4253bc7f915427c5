/** `shoal run --watch` with real processes: the progress of ranks is shown while they run, to holders of the token and to nobody else. */
import { writeFile } from 'node:fs/promises';
import { request, type OutgoingHttpHeaders } from 'node:http';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { shoalRun, type Running } from '../fixtures/launch-harness.ts';
import { browserMissing, launchBrowser, skippedWithoutBrowser } from '../support/browser.ts';

const directory = temporaryFolder('watch', afterAll);
let script: string;
beforeAll(async () => {
  script = join(directory, 'train.mjs');
  await writeFile(
    script,
    `import { existsSync } from 'node:fs';
import { initProcessGroup } from ${JSON.stringify(import.meta.resolve('../../dist/index.js'))};
const group = await initProcessGroup();
const x = group.tensor('float32', [1000]);
for (let isOver = 0; isOver === 0; await new Promise((resolve) => setTimeout(resolve, 20))) {
  x.data[0] = group.rank === 0 && existsSync(process.argv[2]) ? 1 : 0;
  await group.allReduce(x);
  isOver = x.data[0];
}
await group.destroy();
`,
  );
});

interface Watched {
  readonly run: Running;
  readonly url: URL;
  readonly stop: () => Promise<void>;
}

async function watched(name: string): Promise<Watched> {
  const end = join(directory, `${name}-end`);
  const run = shoalRun('--watch', '--report-dir', join(directory, name), '-n', '2', script, end);
  const [[, url]] = await run.output(/shoal: watch: (\S+)\n/g, 1);
  return { run, url: new URL(url), stop: () => writeFile(end, '') };
}

function ask(
  url: URL,
  options: { readonly headers?: OutgoingHttpHeaders; readonly method?: string } = {},
): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const asked = request(url, options, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => (text += chunk.toString()));
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text }));
    });
    asked.on('error', reject);
    asked.end();
  });
}

it('shows the progress of ranks, and refuses requests without token, from elsewhere or for another host', async () => {
  const { run, url, stop } = await watched('job');
  await using _ = run;
  expect(url.hostname).toBe('127.0.0.1');
  const data = new URL(`data${url.search}`, url);
  const withToken = (token: string): URL => new URL(`data?token=${token}`, url);
  const statuses = await Promise.all(
    [
      ask(data),
      ask(data, { headers: { origin: url.origin, 'sec-fetch-site': 'same-origin' } }),
      ask(withToken('')),
      ask(withToken(`${url.searchParams.get('token')}x`)),
      ask(new URL('data', url)),
      ask(data, { headers: { origin: 'http://example.org' } }),
      ask(data, { headers: { origin: 'null' } }),
      ask(data, { headers: { 'sec-fetch-site': 'cross-site' } }),
      ask(data, { headers: { host: `example.org:${url.port}` } }),
      ask(data, { method: 'POST' }),
      ask(new URL(`etc/passwd${url.search}`, url)),
    ].map(async (answer) => (await answer).status),
  );
  expect(statuses).toEqual([200, 200, 403, 403, 403, 403, 403, 403, 403, 405, 404]);
  const seen = async (): Promise<{ rows: { starts: number[] }[]; title: string }> => JSON.parse((await ask(data)).text);
  await expect.poll(async () => (await seen()).rows.length).toBeGreaterThan(0);
  const before = (await seen()).rows.reduce((sum, { starts }) => sum + starts.length, 0);
  await expect.poll(async () => (await seen()).rows.reduce((sum, { starts }) => sum + starts.length, 0)).toBeGreaterThan(before);
  expect(await seen()).toMatchObject({ title: expect.stringContaining('train.mjs'), failure: null });
  await stop();
  expect(await run.ended).toMatchObject({ code: 0, stderr: expect.stringContaining('report.html') });
  await expect(ask(data)).rejects.toThrow(/ECONNREFUSED/);
});

it.skipIf(browserMissing)(`a browser follows the run to its end${skippedWithoutBrowser}`, async () => {
  const { run, url, stop } = await watched('seen');
  await using _ = run;
  const browser = await launchBrowser();
  try {
    const page = await browser.newPage();
    const problems: string[] = [];
    page.on('pageerror', (error) => problems.push(error.message));
    await page.goto(url.href);
    await page.waitForSelector('canvas');
    await page.getByTitle('zoom in').click();
    const calls = async (): Promise<number> => Number(await page.locator('.figures b').nth(3).textContent());
    const before = await calls();
    await expect.poll(calls).toBeGreaterThan(before);
    await stop();
    await run.ended;
    await expect.poll(() => page.locator('.live').textContent()).toMatch(/is over/);
    expect(problems).toEqual([]);
  } finally {
    await browser.close();
  }
});
