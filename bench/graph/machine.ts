/** The machine of a benchmark of graphs, and its load: above the number of CPUs, times are upper bounds, and only ratios of
 *  contestants that took turns are meaningful. Counts are exact anyway. */
import os from 'node:os';

export interface Machine {
  readonly cpu: string;
  readonly cpus: number;
  readonly node: string;
  readonly startedAt: string;
  readonly loadBefore: number;
  readonly loadAfter: number;
}

const startedAt = new Date().toISOString();
const loadBefore = round(os.loadavg()[0]);

/** The machine as it is now; to be called when the benchmark begins. */
export function machine(): Machine {
  const cpus = os.cpus();
  const load = { loadBefore, loadAfter: round(os.loadavg()[0]) };
  return { cpu: cpus[0]?.model ?? 'unknown', cpus: cpus.length, node: process.version, startedAt, ...load };
}

/** CPU milliseconds of this process so far. */
export function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

export function round(value: number, digits = 4): number {
  return Number(value.toPrecision(digits));
}
