/** Encryption of connections between hosts, on and off: the same all-reduces on hosts that are network namespaces, in turns, round by round.
 *  Needs root. Build first.
 *
 *    npx tsx bench/network/encryption.ts [--hosts 2] [--rates 1000,5000] [--rounds 5] [--sizes 8:2000:400,64MiB:8:2] [--out encryption.json]
 *
 *  A rate is in Mbit/s, 0: what the namespaces give. A ratio is plain time divided by encrypted time, of medians of the rounds. */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import os from 'node:os';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from './network.ts';
import { networkPlace } from './network-place.ts';

const loadBefore = os.loadavg()[0];
const text = (fallback: string) => ({ type: 'string', default: fallback }) as const;
const { values } = programArguments(import.meta.url, {
  options: {
    hosts: text('2'),
    rates: text('1000,5000'),
    rounds: text('5'),
    sizes: text('8:2000:400,64MiB:8:2'),
    out: { type: 'string' },
  },
});
const reason = networkUnavailable();
if (reason !== undefined) {
  console.error(reason);
  process.exit(2);
}

const main = fileURLToPath(new URL('../../dist/tools/cli/main.js', import.meta.url));
const command = [process.execPath, main, 'bench', 'all-reduce', '--sizes', values.sizes, '--in-place', '-c', '1', '--json', '-'];
const modes = ['on', 'off'] as const;

interface Row {
  readonly size: number;
  readonly inPlace: { readonly medianUs: number };
}

const results = [];
for (const rateMbit of values.rates.split(',').map(Number)) {
  using network = await createNetwork({ hosts: Number(values.hosts), rateMbit });
  const place = networkPlace({ network, ranksPerHost: 1, secret: randomBytes(32).toString('hex'), timeoutMs: 300_000 });
  const rounds: Record<(typeof modes)[number], Row[][]> = { on: [], off: [] };
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const mode of round % 2 === 0 ? modes : modes.toReversed()) {
      const report = JSON.parse(await place.run({ command, environment: { SHOAL_ENCRYPTION: mode } })) as { rows: Row[] };
      rounds[mode].push(report.rows);
      process.stderr.write(
        `${rateMbit} Mbit/s, round ${round + 1}, ${mode}: ${report.rows.map((row) => `${row.size} B ${row.inPlace.medianUs.toFixed(1)} µs`).join(', ')}\n`,
      );
    }
  }
  for (const [index, { size: bytes }] of rounds.on[0].entries()) {
    const [on, off] = modes.map((mode) => rounds[mode].map((rows) => rows[index].inPlace.medianUs));
    const [onUs, offUs] = [medianOf(on), medianOf(off)];
    results.push({ rateMbit, bytes, onUs, offUs, ratio: Number((offUs / onUs).toPrecision(3)), rounds: { on, off } });
  }
}

const report = {
  how: `npx tsx bench/network/encryption.ts --hosts ${values.hosts} --rates ${values.rates} --rounds ${values.rounds} --sizes ${values.sizes}`,
  machine: { cpus: os.cpus().length, cpu: os.cpus()[0].model, node: process.version, loadBefore },
  hosts: Number(values.hosts),
  results,
};
console.table(results, ['rateMbit', 'bytes', 'onUs', 'offUs', 'ratio']);
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, null, 2)}\n`);

function medianOf(all: readonly number[]): number {
  return all.toSorted((a, b) => a - b)[all.length >> 1];
}
