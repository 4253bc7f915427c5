/** Runs a command on several hosts that are network namespaces, one process per rank, and removes the hosts afterwards, also
 *  after a failure or Ctrl-C. Needs root.
 *
 *    npx tsx bench/network/run.ts --hosts 4 --rate-mbit 1000 -- node dist/tools/cli/main.js bench all-reduce -b 25M -e 25M
 *    npx tsx bench/network/run.ts --hosts 2 --ranks-per-host 2 --delay-us 500 --loss-percent 1 -- npx tsx train.ts
 *
 *  The command finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … in its environment. Rank 0's output is printed. */
import { randomBytes } from 'node:crypto';
import { programArguments } from '../arguments.ts';
import { createNetwork, networkUnavailable } from './network.ts';
import { networkPlace } from './network-place.ts';

const { values, positionals } = programArguments(import.meta.url, {
  allowPositionals: true,
  options: {
    hosts: { type: 'string', default: '2' },
    'ranks-per-host': { type: 'string', default: '1' },
    'rate-mbit': { type: 'string', default: '0' },
    'delay-us': { type: 'string', default: '0' },
    'jitter-us': { type: 'string', default: '0' },
    'loss-percent': { type: 'string', default: '0' },
    'timeout-s': { type: 'string', default: '600' },
    // True if mpirun is to start the ranks.
    mpi: { type: 'boolean', default: false },
  },
});

const reason = networkUnavailable();
if (reason !== undefined || positionals.length === 0) {
  console.error(reason ?? 'a command is missing: run.ts [options] -- <command…>');
  process.exit(2);
}

/** A handler that makes an interruption wait while hosts are made or removed. */
const nothing = (): void => undefined;
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, nothing);

try {
  using network = await createNetwork({
    hosts: Number(values.hosts),
    rateMbit: Number(values['rate-mbit']),
    delayUs: Number(values['delay-us']),
    jitterUs: Number(values['jitter-us']),
    lossPercent: Number(values['loss-percent']),
  });
  const place = networkPlace({
    network,
    ranksPerHost: Number(values['ranks-per-host']),
    secret: randomBytes(32).toString('hex'),
    timeoutMs: Number(values['timeout-s']) * 1000,
  });
  process.stdout.write(values.mpi ? await place.runMpi(positionals) : await place.run({ command: positionals }));
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
}
