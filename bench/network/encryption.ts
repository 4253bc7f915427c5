/** Encryption of connections between hosts, on and off, and node:tls beside them: all-reduces on hosts that are network namespaces, in turns,
 *  round by round. On node:tls two ranks send and receive as many bytes, without a sum. Needs root. Build first.
 *
 *    npx tsx bench/network/encryption.ts [--hosts 2] [--rates 1000,5000] [--rounds 5] [--sizes 8:2000:400,64MiB:8:2] [--out encryption.json]
 *
 *  A rate is in Mbit/s, 0: what the namespaces give. Ratios are the plain time, and that of node:tls (on two hosts), divided by
 *  the encrypted time, of medians of the rounds. */
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
const tlsRank = fileURLToPath(new URL('tls-rank.mjs', import.meta.url));
const tlsCommand = [process.execPath, tlsRank, values.sizes.replaceAll(/(\d+)MiB/g, (_, mebibytes) => String(Number(mebibytes) * 2 ** 20))];
const modes = Number(values.hosts) === 2 ? (['on', 'off', 'tls'] as const) : (['on', 'off'] as const);

interface Row {
  readonly size: number;
  readonly inPlace: { readonly medianUs: number };
}

const results = [];
for (const rateMbit of values.rates.split(',').map(Number)) {
  using network = await createNetwork({ hosts: Number(values.hosts), rateMbit });
  const place = networkPlace({ network, ranksPerHost: 1, secret: randomBytes(32).toString('hex'), timeoutMs: 300_000 });
  const rounds: Record<'on' | 'off' | 'tls', Row[][]> = { on: [], off: [], tls: [] };
  for (let round = 0; round < Number(values.rounds); round++) {
    for (const mode of round % 2 === 0 ? modes : modes.toReversed()) {
      const program = mode === 'tls' ? { command: tlsCommand } : { command, environment: { SHOAL_ENCRYPTION: mode } };
      const report = JSON.parse(await place.run(program)) as { rows: Row[] };
      rounds[mode].push(report.rows);
      process.stderr.write(
        `${rateMbit} Mbit/s, round ${round + 1}, ${mode}: ${report.rows.map((row) => `${row.size} B ${row.inPlace.medianUs.toFixed(1)} µs`).join(', ')}\n`,
      );
    }
  }
  for (const [index, { size: bytes }] of rounds.on[0].entries()) {
    const times = modes.map((mode) => [mode, rounds[mode].map((rows) => rows[index].inPlace.medianUs)] as const);
    const [onUs, offUs, tlsUs] = times.map(([, all]) => medianOf(all));
    const [ratio, tlsRatio] = [offUs, tlsUs].map((us) => (us === undefined ? undefined : Number((us / onUs).toPrecision(3))));
    results.push({ rateMbit, bytes, onUs, offUs, tlsUs, ratio, tlsRatio, rounds: Object.fromEntries(times) });
  }
}

const report = {
  how: `npx tsx bench/network/encryption.ts --hosts ${values.hosts} --rates ${values.rates} --rounds ${values.rounds} --sizes ${values.sizes}`,
  machine: { cpus: os.cpus().length, cpu: os.cpus()[0].model, node: process.version, loadBefore },
  hosts: Number(values.hosts),
  results,
};
console.table(results, ['rateMbit', 'bytes', 'onUs', 'offUs', 'tlsUs', 'ratio', 'tlsRatio']);
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, null, 2)}\n`);

function medianOf(all: readonly number[]): number {
  return all.toSorted((a, b) => a - b)[all.length >> 1];
}
