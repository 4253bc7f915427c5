import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, it } from 'vitest';
import { sample } from './definitions.ts';
import { checkCollector, EpochSpans } from './epoch-spans.ts';
import type { RankReport } from './rank-report.ts';

const report = (steps: number, calls: number): RankReport => ({
  ...{ rank: 2, pid: 5, host: 'h', size: 3, epoch: 0, steps, calls, pending: 0 },
  samples: [
    sample('calls', calls, { group: 'world', collective: 'all-reduce', path: 'host path' }),
    sample('calls', 1, { group: 'rows', collective: 'all-reduce', path: 'host path' }),
    sample('seconds', calls / 10, { group: 'world', collective: 'all-reduce', path: 'host path' }, '_sum'),
    sample('seconds', 7, { group: 'world', collective: 'all-reduce', path: 'host path', le: 1 }, '_bucket'),
  ],
});

interface Sent {
  readonly path: string | undefined;
  readonly body: { resourceSpans: { scopeSpans: { spans: Record<string, unknown>[] }[] }[] };
}

/** A collector that takes one request, and answers with a status. */
async function collector(status: number): Promise<{ url: string; sent: Promise<Sent>; close(): void }> {
  let take: (sent: Sent) => void;
  const sent = new Promise<Sent>((resolve) => (take = resolve));
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      response.writeHead(status).end();
      take({ path: request.url, body: JSON.parse(Buffer.concat(parts).toString()) as Sent['body'] });
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, sent, close: () => server.close() };
}

it('sends a span for each epoch, with the sums of that epoch', async () => {
  const { url, sent, close } = await collector(200);
  const spans = new EpochSpans();
  spans.begin(report(0, 0), 3, 1000);
  spans.begin(report(10, 100), 2, 3000);
  await spans.send(url, 'job', report(15, 160), 4000.5);
  close();
  const { path, body } = await sent;
  expect(path).toBe('/v1/traces');
  const [first, second] = body.resourceSpans[0].scopeSpans[0].spans;
  const valuesOf = (span: Record<string, unknown>): Record<string, unknown> =>
    Object.fromEntries(
      (span['attributes'] as { key: string; value: { doubleValue: number } }[]).map(({ key, value }) => [key, value.doubleValue]),
    );
  expect(valuesOf(first)).toMatchObject({
    'shoal.rank': 2,
    'shoal.epoch': 0,
    'shoal.world_size': 3,
    'shoal.steps': 10,
    'shoal.all-reduce.calls': 100,
  });
  expect(valuesOf(second)).toMatchObject({ 'shoal.epoch': 1, 'shoal.world_size': 2, 'shoal.steps': 5, 'shoal.all-reduce.seconds': 6 });
  expect(first).toMatchObject({ startTimeUnixNano: '1000000000', endTimeUnixNano: '3000000000' });
  expect(second).toMatchObject({ startTimeUnixNano: '3000000000', endTimeUnixNano: '4000500000', traceId: first['traceId'] });
  expect([first['traceId'], first['spanId']].map((id) => String(id).length)).toEqual([32, 16]);
  expect(second['spanId']).not.toBe(first['spanId']);
});

it('has a bound on the spans', async () => {
  const { url, sent, close } = await collector(200);
  const spans = new EpochSpans();
  for (let epoch = 0; epoch < 100; epoch++) spans.begin(report(epoch, epoch), 100 - epoch, epoch);
  await spans.send(url, 'job', report(100, 100), 200);
  close();
  const all = (await sent).body.resourceSpans[0].scopeSpans[0].spans;
  expect(all).toHaveLength(32);
  expect(all.at(-1)).toMatchObject({ endTimeUnixNano: '200000000' });
});

it('says who has not taken the spans, and why', async () => {
  const refusing = await collector(503);
  const spans = new EpochSpans();
  await expect(spans.send(refusing.url, 'job', report(1, 1), 1)).rejects.toThrow(
    /SHOAL_OTLP: http:\S+\/v1\/traces has not taken the spans: status 503/,
  );
  refusing.close();
  await expect(spans.send('http://127.0.0.1:1/v1/traces', 'job', report(1, 1), 1)).rejects.toThrow(
    /127\.0\.0\.1:1\/v1\/traces has not taken .*ECONNREFUSED|bad port/,
  );
  expect(() => checkCollector('localhost:4318')).toThrow(/expected the address/);
  expect(() => checkCollector('')).not.toThrow();
});
