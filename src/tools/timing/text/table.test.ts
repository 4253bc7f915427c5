import { describe, expect, it } from 'vitest';
import type { BenchHeader, BenchRow, HalfResult } from '../report.ts';
import { formatFooter, formatHeader, formatRow } from './table.ts';

const options: BenchHeader['options'] = {
  collective: 'all-reduce',
  dtype: 'float32',
  op: 'sum',
  root: 0,
  checks: 1,
  memory: 'shared',
  touch: 'each',
  wait: 'sync',
  parallel: 1,
  buckets: 1,
  backend: 'auto',
  samples: 'dropped',
};

const header: BenchHeader = {
  schema: 'shoal-bench',
  version: 1,
  shoal: '0.1.0',
  node: 'v20.0.0',
  native: 'avx2',
  ranks: [{ rank: 0, pid: 4321, host: 'somewhere', cpus: 2, processor: 'Some CPU' }],
  hosts: [[0]],
  options,
  stopwatchUs: 0.04,
};

function half(medianUs: number, bandwidth: number, wrong: number | null = 0): HalfResult {
  return { medianUs, minUs: 0, p99Us: 0, meanUs: 0, algorithmBandwidth: bandwidth, busBandwidth: bandwidth, wrong };
}

function row(outOfPlace: HalfResult | null, inPlace: HalfResult | null): BenchRow {
  return { dtype: 'float32', op: 'sum', size: 33554432, count: 8388608, iterations: 20, outOfPlace, inPlace };
}

describe('the table', () => {
  // Lines as nccl-tests 2.19.6 prints them (src/util.cu, writeResultHeader and writeBenchmarkLine…).
  it('has the column heads of nccl-tests', () => {
    const lines = formatHeader(header, {
      range: { minBytes: 8, maxBytes: 128, stepBytes: 1, stepFactor: 2 },
      iterations: 20,
      warmup: 5,
    }).split('\n');
    expect(lines.slice(-4)).toEqual([
      '#                                                              out-of-place                       in-place          ',
      '#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ',
      '#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ',
      '',
    ]);
    expect(lines).toContain(
      '# nThread 1 nGpus 0 minBytes 8 maxBytes 128 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0',
    );
    expect(lines).toContain('#  Rank  0 Group  0 Pid   4321 on  somewhere device  0 [2 cpus] Some CPU');
  });

  it('has the rows of nccl-tests', () => {
    expect(formatRow(row(half(1234.5, 27.18), half(99.999, 335.544)), options)).toBe(
      '    33554432       8388608     float     sum      -1  1234.50   27.18   27.18       0   100.00  335.54  335.54       0\n',
    );
  });

  it('fits any number into its column', () => {
    const cells = (us: number, bandwidth: number, wrong: number | null): string =>
      formatRow(row(half(us, bandwidth, wrong), null), options)
        .slice(52)
        .replace(/( +N\/A){4}\n$/, '');
    expect(cells(12345.678, 1234.5, 3)).toBe('  12345.7  1234.5  1234.5       3');
    expect(cells(1234567.8, 12345.67, null)).toBe('  1234568   12346   12346     N/A');
    expect(cells(123456789, 12345678, 1234567)).toBe('  1.2e+08   1e+07   1e+07  1.23457e+06');
  });

  it('says N/A where a collective has no such half', () => {
    expect(formatRow(row(half(1, 1), null), { ...options, collective: 'broadcast', root: 3 })).toBe(
      '    33554432       8388608     float    none       3     1.00    1.00    1.00       0      N/A     N/A     N/A     N/A\n',
    );
  });

  it('has the footer of nccl-tests', () => {
    expect(formatFooter({ wrong: 0, averageBusBandwidth: 12.34567891 }, options)).toBe(
      '# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 12.3457 \n#\n# Collective test concluded: all-reduce\n',
    );
    expect(formatFooter({ wrong: 2, averageBusBandwidth: 0 }, options)).toMatch(/: 2 FAILED\n# Avg bus bandwidth {4}: 0 \n/);
  });
});
