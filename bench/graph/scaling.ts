/** Fused against unfused receives of the wide & deep example, for growing numbers of workers beside one parameter server: bench/graph/run.ts
 *  for each. The processes share the CPUs of this host, so only the ratio in a row means something.
 *
 *    npx tsx bench/graph/scaling.ts --out out.json
 *    npx tsx bench/graph/scaling.ts --workers 1,2 --rounds 1 --steps 2
 *
 *  Build first. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { machine } from './machine.ts';

interface WayRow {
  readonly name: string;
  readonly rpcsPerStep: number;
  readonly throughputRatio: { readonly median: number; readonly best: number };
}

const { values } = programArguments(import.meta.url, {
  options: {
    workers: { type: 'string', default: '1,2,4,8,16,32' },
    carriers: { type: 'string', default: 'gRPC,fabric' },
    rounds: { type: 'string', default: '3' },
    steps: { type: 'string', default: '5' },
    out: { type: 'string' },
  },
});
const { out: _, ...options } = values;
const { rounds, steps } = options;
const program = fileURLToPath(new URL('run.ts', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'bench-graph-scaling-'));
const rows: unknown[] = [];
try {
  const cases = values.workers.split(',').flatMap((workers) => values.carriers.split(',').map((carrier) => ({ workers, carrier })));
  for (const { workers, carrier } of cases) {
    const out = join(folder, `${carrier}-${workers}.json`);
    const ways = `${carrier} unfused,${carrier} static`;
    const flags = Object.entries({ ways, workers, rounds, steps, out }).flatMap(([name, value]) => [`--${name}`, value]);
    execFileSync(process.execPath, ['--import', 'tsx', program, ...flags], { stdio: ['ignore', 'ignore', 'inherit'] });
    const [unfused, fused] = (JSON.parse(readFileSync(out, 'utf8')) as { readonly rows: readonly WayRow[] }).rows;
    const row = {
      ...{ carrier, workers: Number(workers) },
      rpcsPerStep: [unfused.rpcsPerStep, fused.rpcsPerStep],
      throughputRatio: fused.throughputRatio,
    };
    rows.push(row);
    // After each row, because many workers take minutes.
    if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify({ machine: machine(), options, rows }, undefined, 2)}\n`);
    console.log(
      `${carrier}, workers ${workers.padStart(3)}: × ${row.throughputRatio.median.toFixed(2)} (best round ${row.throughputRatio.best.toFixed(2)})`,
    );
  }
} finally {
  rmSync(folder, { recursive: true });
}
