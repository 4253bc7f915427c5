/** A job with a known secret, over two hosts that are simulated on this machine, is recorded in every way there is: the secret is nowhere. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { freePort } from '../../src/base/testing/free-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { shoal, storeScript, type Running } from '../fixtures/launch-harness.ts';
import { fixtureScript } from '../support/fixtures.ts';

const secret = 'do-not-tell-8f0c5b2e6d1a4973';

function host(port: number, index: number, env: Record<string, string>, ...rest: readonly string[]): Running {
  const place = ['--nnodes', '2', '--node-rank', `${index}`, '--master-addr', '127.0.0.1', '--master-port', `${port}`];
  return shoal(['run', ...place, '--grace', '60s', ...rest], { env: { SHOAL_SECRET: secret, SHOAL_HOST_ID: `host ${index}`, ...env } });
}

describe('the secret of a job', () => {
  it('is in no output, log, report, trace, flight record, summary or command line, also of a job that fails', async () => {
    const folder = temporaryFolder('secrets');
    const port = await freePort();
    const env = { SHOAL_LOG_LEVEL: 'debug', SHOAL_FLIGHT_RECORDER_DIR: join(folder, 'flight') };
    const flags = (node: number): string[] => [
      ...[
        '--log-dir',
        join(folder, `logs-${node}`),
        '--report-dir',
        join(folder, `report-${node}`),
        '--json',
        join(folder, `${node}.json`),
      ],
      fixtureScript('private-rank'),
    ];
    await using first = host(port, 0, env, ...flags(0));
    await using second = host(port, 1, env, ...flags(1));
    const ended = await Promise.all([first.ended, second.ended]);
    const texts = ended.map(({ stdout, stderr }) => stdout + stderr);
    expect(texts.join()).toMatch(/rank 1 cannot go on/);
    expect(texts.join()).toMatch(/command lines: .*private-rank.* \| .*run/);
    const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name));
    const written = files.filter((file) => statSync(file).isFile());
    expect(written.some((file) => file.includes('flight'))).toBe(true);
    expect(written.some((file) => file.includes('report-0'))).toBe(true);
    expect(written.some((file) => file.includes('logs-1'))).toBe(true);
    for (const file of written) texts.push(readFileSync(file, 'latin1'));
    for (const text of texts) {
      expect(text).not.toContain(secret);
      expect(text).not.toContain(Buffer.from(secret).toString('hex'));
      expect(text).not.toContain(Buffer.from(secret).toString('base64').slice(0, 30));
    }
  });

  it('one host that demands encryption and one that does not refuse each other, and say which setting differs', async () => {
    const port = await freePort();
    await using first = host(port, 0, {}, storeScript);
    await using second = host(port, 1, { SHOAL_ENCRYPTION: 'off' }, storeScript);
    const { code, stderr } = await second.ended;
    expect(code).not.toBe(0);
    expect(stderr).toMatch(/demands encryption and the launcher of node 1 has SHOAL_ENCRYPTION=off; set the same everywhere/);
    first.child.kill('SIGTERM');
    await first.ended;
  });
});
