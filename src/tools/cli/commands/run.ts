/** `shoal run`: reads the command line. The vocabulary is torchrun's. */
import { Command, Option } from 'commander';
import { parseMilliseconds } from '../../../base/settings/quantity.ts';
import { collect, natural, positive, valueOf } from '../option-values.ts';
import type { Machines, RunFlags } from '../run/run-script.ts';

const examples = `
Examples:
  shoal run -n 4 train.ts                        4 processes on this machine
  shoal run -n auto train.ts -- --epochs 3       one per processor; what follows the script is the script's
  shoal run -n 2 --log-dir logs train.ts         also writes logs/rank-0/stdout.log and so on
  shoal run -n 4 --min 2 --max-restarts 3 train.ts
                                                 goes on without lost ranks, which are started again alone
  shoal run --workers 4 --servers 2 train.ts     4 processes and 2 parameter servers, which need no script
  shoal run --workers 3 --ps 2 train.ts          5 processes of a graph's script, the last 2 of them its parameter servers
  SHOAL_SECRET=… shoal run --nnodes 2 --node-rank 0 --master-addr 10.0.0.4 -n 2 train.ts
  SHOAL_SECRET=… shoal run --nnodes 1:4 --master-addr 10.0.0.4 -n 2 train.ts
                                                 the same on each machine: up to 4 join and leave while it trains

The script finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, … in its environment; initProcessGroup() reads them.
The exit code is that of the first rank that failed (128 + signal when a signal ended it).`;

const machines = valueOf('a whole number from 1, or two, the least and the most: 1:4', (text): Machines | undefined => {
  const [, least, most] = /^([1-9]\d{0,4})(?::([1-9]\d{0,4}))?$/.exec(text) ?? [];
  if (least === undefined || Number(most ?? least) < Number(least)) return undefined;
  return most === undefined || most === '1' ? { min: Number(least) } : { min: Number(least), max: Number(most) };
});
const place = valueOf('a port, or an address and a port: 9464, 0.0.0.0:9464', (text) => (/^(.*:)?\d+$/.test(text) ? text : undefined));
const port = valueOf('a port, 1 to 65535', (text) => (natural(text) <= 65_535 ? natural(text) : undefined));
const duration = valueOf('a time such as 500ms, 30s or 5min', parseMilliseconds);

export function runCommand(setExitCode: (code: number) => void): Command {
  return new Command('run')
    .summary('start a script on several processes')
    .description('Starts a JavaScript or TypeScript file on several processes, as the ranks of one job, and follows them to their end.')
    .argument('<script>', 'the file to run')
    .argument('[args...]', 'arguments of the script, after -- if you like')
    .option('-n, --nproc-per-node <count>', 'processes on this machine: a number, or auto: one per available processor; default 1')
    .addOption(new Option('--nnodes <count>', 'machines in the job; 1:4: they join and leave').argParser(machines).default({ min: 1 }, '1'))
    .option('--node-rank <index>', 'this machine among them, from 0; with 1:4 not needed', natural)
    .option('--master-addr <address>', 'where machine 0 can be reached; default for one machine: 127.0.0.1')
    .option('--master-port <port>', 'port of the store on machine 0; default for one machine: any free port, else 29500', port)
    .option('--standalone', 'one machine, any free port, whatever the other options say')
    .option('--job-id <name>', 'name of the job, the same on every machine')
    .option('--secret-file <path>', "file with the job's secret, for several machines; default: SHOAL_SECRET")
    .option('--max-restarts <count>', 'how often all ranks are started again after a failure; with --min, also each alone', natural, 0)
    .option('--min <count>', 'goes on while at least so many ranks are left; for one machine, or --nnodes 1:4; default: all', positive)
    .option('--log-dir <path>', 'writes the output of every rank to <path>/rank-<n>/{stdout,stderr}.log, too')
    .option('-r, --redirects <streams>', 'to the files only: 0 none, 1 stdout, 2 stderr, 3 both, or per local rank: 0:3,1:1')
    .option('-t, --tee <streams>', 'to the files and the console, as --redirects; default with --log-dir: 3')
    .option('--local-ranks-filter <ranks>', 'only these local ranks write to the console: 0,2')
    .addOption(timeOption('--grace <time>', 'after a failure, how long the other ranks may take to end by themselves', '5s'))
    .addOption(timeOption('--kill-after <time>', 'from SIGTERM to SIGKILL', '10s'))
    .addOption(timeOption('--join-timeout <time>', 'how long machines wait for each other', '5min'))
    .option('--workers <count>', 'the same as --nproc-per-node, beside --servers')
    .option('--servers <count>', 'parameter servers in the job, for scripts that use shoal/kvstore', positive)
    .option('--ps <count>', 'parameter servers of a graph, for scripts that use shoal/graph: the last ranks, beside --workers', positive)
    .option('--worker-groups <count>', 'groups of workers that do not wait for each other', positive, 1)
    .option('--server-groups <count>', 'groups of servers, each with a copy of all parameters', positive, 1)
    .option('--replicas <count>', '2: every server has a standby that takes over', positive, 1)
    .option('--checkpoint-dir <path>', 'where servers save their state, and find it again when they are restarted')
    .option(
      '--server-restarts <count>',
      'how often a failed server is started again; default 3 with --checkpoint-dir or --replicas 2, else 0',
      natural,
    )
    .addOption(
      new Option('--node-option <flag>', 'flag for Node.js itself, such as --max-old-space-size=8192; may be repeated')
        .argParser(collect)
        .default([], 'none'),
    )
    .option('--no-node', 'the script is any executable program')
    .option('--report', 'records the run, and writes runs/<time>/report.html at its end')
    .option('--report-dir <path>', 'the same, into this folder')
    .option('--watch', 'records the run, and shows its page while it runs, to whoever has the address that is printed')
    .option('--metrics <[address:]port>', 'serves metrics of the ranks of this machine to Prometheus: 9464, 0.0.0.0:9464', place)
    .option(
      '--metrics-textfile <folder>',
      'writes these metrics for node_exporter every 5 s, to <folder>/shoal-<pid>.prom, until the job ends',
    )
    .option('-q, --quiet', 'no lines about ranks that start and end well')
    .option('--json <file>', 'at the end writes how the job went, as JSON; - for standard output, after the output of the ranks')
    .addHelpText('after', examples)
    .passThroughOptions()
    .action(async (script: string, args: readonly string[], flags: RunFlags) => {
      const { runScript } = await import('../run/run-script.ts');
      setExitCode(await runScript(script, args[0] === '--' ? args.slice(1) : args, flags));
    });
}

/** An option in milliseconds whose default is shown as people write it. */
function timeOption(flags: string, about: string, fallback: string): Option {
  return new Option(flags, about).argParser(duration).default(duration(fallback), fallback);
}
