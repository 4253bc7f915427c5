/** Tells a collector of OpenTelemetry how a rank has fared: at its end, a span for each epoch of its world, by OTLP over HTTP as JSON. The
 *  number of attributes is bounded; there is no span for a call.
 *  See https://opentelemetry.io/docs/specs/otlp/ */
import { createHash } from 'node:crypto';
import { messageOf, ShoalError } from '../base/errors.ts';
import { packageVersion } from '../base/packages/version.ts';
import type { RankReport } from './rank-report.ts';

/** Later ones are part of the last. */
const epochsMax = 32;
const sendMs = 3000;

/** Sums by name. */
type Totals = Readonly<Record<string, number>>;

interface Epoch {
  readonly startMs: number;
  endMs: number;
  readonly before: Totals;
  totals: Totals;
  readonly size: number;
}

export class EpochSpans {
  readonly #epochs: Epoch[] = [];

  /** The epoch before ends, with what is reported now. @param size ranks of the world from now on. */
  begin(report: RankReport, size: number, wallMs: number): void {
    const totals = totalsOf(report);
    this.#end(totals, wallMs);
    if (this.#epochs.length < epochsMax) this.#epochs.push({ startMs: wallMs, endMs: wallMs, before: totals, totals, size });
  }

  /** @param world its name: ranks of a job are one trace. @throws (rejects) ShoalError `system` when it was not taken. */
  async send(endpoint: string, world: string, report: RankReport, wallMs: number): Promise<void> {
    this.#end(totalsOf(report), wallMs);
    const url = `${endpoint.replace(/\/$/, '')}${endpoint.includes('/v1/') ? '' : '/v1/traces'}`;
    const spans = this.#epochs.map((epoch, at) => spanOf(epoch, { at, world, rank: report.rank }));
    const resource = { 'service.name': 'shoal', 'service.version': packageVersion, 'host.name': report.host, 'process.pid': report.pid };
    const scopeSpans = [{ scope: { name: 'shoal', version: packageVersion }, spans }];
    const body = JSON.stringify({ resourceSpans: [{ resource: { attributes: attributesOf(resource) }, scopeSpans }] });
    try {
      const request = { method: 'POST', headers: { 'content-type': 'application/json' }, body, signal: AbortSignal.timeout(sendMs) };
      const { ok, status } = await fetch(url, request);
      if (!ok) throw new Error(`status ${status}`);
    } catch (thrown) {
      const why = messageOf((thrown as Error).cause ?? thrown);
      throw new ShoalError('system', `SHOAL_OTLP: ${url} has not taken the spans: ${why}`, { cause: thrown });
    }
  }

  #end(totals: Totals, wallMs: number): void {
    const last = this.#epochs.at(-1);
    if (last) Object.assign(last, { totals, endMs: wallMs });
  }
}

/** @throws ShoalError `config` for what is no address of a collector. */
export function checkCollector(endpoint: string): void {
  if (endpoint === '' || (URL.canParse(endpoint) && /^https?:/.test(endpoint))) return;
  throw new ShoalError('config', `SHOAL_OTLP ${endpoint}: expected the address of a collector, such as http://localhost:4318`);
}

function totalsOf({ steps, calls, samples }: RankReport): Totals {
  const totals: Record<string, number> = { steps, calls };
  for (const { metric, part, labels, value } of samples) {
    const isSum = metric === 'calls' || metric === 'bytes' || (metric === 'seconds' && part === '_sum');
    const name = `${labels['collective']}.${metric}`;
    if (isSum) totals[name] = (totals[name] ?? 0) + value;
  }
  return totals;
}

function spanOf({ startMs, endMs, before, totals, size }: Epoch, { at, world, rank }: { at: number; world: string; rank: number }): object {
  const digest = (text: string, characters: number): string => createHash('sha256').update(text).digest('hex').slice(0, characters);
  const sums = Object.entries(totals).map(([name, value]) => [`shoal.${name}`, value - (before[name] ?? 0)] as const);
  return {
    traceId: digest(world, 32),
    spanId: digest(`${world} ${rank} ${at}`, 16),
    name: `rank ${rank}, epoch ${at}`,
    kind: 1,
    startTimeUnixNano: nanoseconds(startMs),
    endTimeUnixNano: nanoseconds(endMs),
    attributes: attributesOf({ 'shoal.rank': rank, 'shoal.epoch': at, 'shoal.world_size': size, ...Object.fromEntries(sums) }),
  };
}

function attributesOf(values: Readonly<Record<string, string | number>>): object[] {
  return Object.entries(values).map(([key, value]) => ({
    key,
    value: typeof value === 'string' ? { stringValue: value } : { doubleValue: value },
  }));
}

function nanoseconds(wallMs: number): string {
  return String(BigInt(Math.round(wallMs * 1000)) * 1000n);
}
