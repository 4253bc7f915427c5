/** `shoal simulate`: executes plans in virtual time: how long would this take on that cluster? */
import { Command } from 'commander';
import { numberOf, positive } from '../option-values.ts';
import { addRequestOptions, withRanksPerHost } from '../plan/request-options.ts';
import type { SimulateFlags } from '../simulate/run-simulate.ts';

const rate = numberOf('a number of at least 0', /^\d{1,9}(\.\d+)?$/);

export function simulateCommand(setExitCode: (code: number) => void): Command {
  const command = new Command('simulate')
    .summary('run a collective in virtual time on a cluster that is described')
    .description(
      'Executes the plans of a collective without payload, on thousands of ranks: rates per link class, ports with fair sharing, time of messages, operations in flight.',
    )
    .argument('[collective]', 'such as all-reduce; none with --micro-benchmarks')
    .option('-a, --algorithms <names>', 'algorithms to compare, with commas; auto: what is chosen without being asked', 'auto');
  return addRequestOptions(command, { hosts: 8, ranksPerHost: 8, bytes: { about: 'of an operation; several with commas', value: '25MiB' } })
    .option('--operations <count>', 'operations one after the other', positive, 1)
    .option('--in-flight <count>', 'operations that may overlap', positive, 1)
    .option('--preset <name>', 'rates to start from: tcp, gpu-cluster, gpu-cluster-device', 'tcp')
    .option('--latency <us>', 'between hosts, microseconds', rate)
    .option('--overhead <us>', "of a message, of its sender's and of its receiver's time, microseconds", rate)
    .option('--gbit <rate>', 'of a port, Gbit/s', rate)
    .option('--ports <count>', 'ports per host', positive)
    .option('--micro-benchmarks', "the three figures of Fairring's document, instead of a collective")
    .option('--buckets <count>', 'with --micro-benchmarks: buckets that are simulated, of 64', positive, 64)
    .option('--json <file>', 'writes the results as JSON; - for standard output instead of the table')
    .option('--html <file>', 'writes charts and numbers as one page')
    .action(async (collective: string | undefined, flags: SimulateFlags) => {
      const { runSimulate } = await import('../simulate/run-simulate.ts');
      const onProgress = process.stderr.isTTY ? (text: string) => process.stderr.write(`\r\u001b[K${text}`) : undefined;
      const text = await runSimulate(collective, withRanksPerHost(flags), onProgress);
      if (process.stderr.isTTY) process.stderr.write('\r\u001b[K');
      process.stdout.write(text);
      setExitCode(0);
    });
}
