/** The measurements for the documentation: every file of bench/results with the command that made it. `bench/measure.ts` runs
 *  them, docs/performance.md shows them. */

export interface Measurement {
  /** Name of its file in bench/results, without the extension. */
  readonly name: string;
  /** Title for people: the places of ranks, and anything special. */
  readonly title: string;
  /** Contents of the file: `peers` against others, `algorithms` against each other, the gain by `overlap`, or the report
   *  of another benchmark. */
  readonly kind: 'peers' | 'algorithms' | 'overlap' | 'report';
  /** Arguments of node in the repository; `{out}` stands for the folder of results. */
  readonly command: readonly string[];
  /** Environment variables for it. */
  readonly environment?: Readonly<Record<string, string>>;
}

/** Variables of measurements between hosts, where the peers encrypt nothing. */
const betweenHosts = { environment: { SHOAL_ENCRYPTION: 'off' } };

const gigabit = ['--rate-mbit', '1000'];
/** Sizes at which algorithms are compared; the comparison warms up by itself. */
const upTo16MiB = ['-b', '8', '-e', '16M', '-f', '8'];
const small = ['-b', '8', '-e', '32K', '-f', '8', '--budget', '4000'];
const large = ['-b', '256K', '-e', '16M', '-f', '8'];
const graphWays = ['--ways', 'gRPC unfused,gRPC static,gRPC static and run time,fabric unfused,fabric static,fabric static and run time'];
const delayed = [...gigabit, '--delay-us', '500'];

export const measurements: readonly Measurement[] = [
  peers('peers-one-host-2-ranks', '2 ranks on one host', ['--ranks', '2', '--rounds', '5']),
  // The first calls run interpreted JavaScript, for longer where ranks share CPUs, so there are thousands of the smallest.
  peers('peers-one-host-4-ranks', '4 ranks on one host', [
    ...['--ranks', '4', '--rounds', '3', '--warmup', '5'],
    ...['--sizes', '8:20000,1KiB:5000,8KiB:1500,64KiB:600,1MiB:100,4MiB:40,25MiB:12,100MiB:4'],
  ]),
  peers('peers-one-host-8-ranks', '8 ranks on one host', [
    ...['--ranks', '8', '--rounds', '2', '--warmup', '3'],
    ...['--sizes', '8:8000,1KiB:2000,8KiB:500,64KiB:200,1MiB:60,4MiB:40,25MiB:12,100MiB:4'],
  ]),
  peers('peers-one-host-64-buckets', '2 ranks on one host, 64 tensors back to back', [
    ...['--ranks', '2', '--rounds', '3', '--buckets', '64', '--sizes', '25MiB:2'],
    ...['--only', 'shoal sync,shoal async,open mpi,gloo'],
  ]),
  // The first calls must not be the median, as on one host: thousands of the smallest, dozens of 1 MiB.
  network('peers-4-hosts-1gbit-small', '4 hosts, 1 Gbit/s, small tensors', [
    ...['--hosts', '4', ...gigabit, '--rounds', '5', '--warmup', '20', '--sizes', '8:10000,1KiB:5000,8KiB:2000,64KiB:300'],
  ]),
  network('peers-4-hosts-1gbit', '4 hosts, 1 Gbit/s', [
    ...['--hosts', '4', ...gigabit, '--rounds', '3', '--warmup', '1', '--sizes', '1MiB:60,25MiB:4,100MiB:2'],
  ]),
  network('peers-4-hosts-64-buckets', '4 hosts, 1 Gbit/s, 64 tensors back to back', [
    ...['--hosts', '4', ...gigabit, '--rounds', '1', '--warmup', '0', '--buckets', '64', '--check-buckets', '1', '--sizes', '25MiB:1'],
  ]),
  network('peers-4-hosts-1gbit-500us', '4 hosts, 1 Gbit/s, 500 µs one way', [
    ...['--hosts', '4', ...delayed, '--rounds', '3', '--warmup', '5', '--sizes', '8:1000,1KiB:500,64KiB:60,25MiB:4'],
  ]),
  network('peers-4-hosts-1gbit-500us-loss', '4 hosts, 1 Gbit/s, 500 µs one way, 1 % of packets lost', [
    ...['--hosts', '4', ...delayed, '--loss-percent', '1', '--rounds', '2', '--warmup', '2', '--sizes', '1KiB:50,64KiB:20,25MiB:3'],
  ]),
  network('peers-2-hosts-1gbit-25ms-loss', '2 hosts, 1 Gbit/s, 25 ms one way, 0.1 % of packets lost', [
    ...['--hosts', '2', ...gigabit, '--delay-us', '25000', '--loss-percent', '0.1', '--rounds', '2', '--warmup', '1'],
    ...['--sizes', '25MiB:2'],
  ]),
  network('peers-8-hosts-1gbit-small', '8 hosts, 1 Gbit/s, small tensors', [
    ...['--hosts', '8', ...gigabit, '--rounds', '5', '--warmup', '20', '--sizes', '8:5000,1KiB:2000,8KiB:1000,64KiB:150'],
  ]),
  network('peers-8-hosts-1gbit', '8 hosts, 1 Gbit/s', [
    ...['--hosts', '8', ...gigabit, '--rounds', '3', '--warmup', '1', '--sizes', '1MiB:60,25MiB:4,100MiB:2'],
  ]),
  network('peers-4x2-1gbit', '4 hosts of 2 ranks, 1 Gbit/s', [
    ...['--hosts', '4', '--ranks-per-host', '2', ...gigabit, '--rounds', '3', '--warmup', '1', '--sizes', '25MiB:3'],
    ...['--algorithms', 'fairring,direct,ring'],
  ]),
  {
    name: 'earlier',
    title: 'Beside earlier commits',
    kind: 'report',
    command: ['--import', 'tsx', 'bench/earlier/run.ts', '--out', '{out}'],
  },
  {
    name: 'earlier-25-mib',
    title: '25 MiB beside an earlier commit, taken apart: writing, start, sum',
    kind: 'report',
    command: [
      ...['--import', 'tsx', 'bench/earlier/run.ts', '--commits', 'HEAD,3121df6', '--only', '2 ranks', '--rounds', '10'],
      ...['--sizes', '26214400:6:300:1', '--name', 'earlier-25-mib', '--out', '{out}'],
    ],
  },
  {
    name: 'earlier-parameter-server',
    title: 'the parameter server beside earlier commits',
    kind: 'report',
    command: [
      ...['--import', 'tsx', 'bench/earlier/run.ts', '--only', 'parameter server', '--rounds', '10'],
      ...['--name', 'earlier-parameter-server', '--out', '{out}'],
    ],
  },
  {
    name: 'network-path',
    title: 'between hosts, beside the commit before the network path took calls up to 1 MiB',
    kind: 'report',
    command: [
      ...[
        '--import',
        'tsx',
        'bench/earlier/run.ts',
        '--commits',
        '608c6488',
        '--only',
        '4 hosts small,4 hosts,8 hosts small,8 hosts',
        '--rounds',
        '2',
      ],
      ...['--name', 'network-path', '--out', '{out}'],
    ],
  },
  {
    name: 'first-calls',
    title: 'the first calls of a process',
    kind: 'report',
    command: [
      ...['--import', 'tsx', 'bench/first-calls/run.ts', '--out', '{out}/first-calls.json'],
      '--node-options=--no-opt,--no-concurrent-recompilation,--v8-pool-size=0',
    ],
  },
  algorithms('algorithms-one-host-2-ranks', '2 ranks on one host', [...['-n', '2'], ...upTo16MiB]),
  algorithms('algorithms-one-host-4-ranks', '4 ranks on one host', [...['-n', '4'], ...upTo16MiB]),
  algorithms('algorithms-4-hosts-1gbit-small', '4 hosts, 1 Gbit/s, small tensors', small, ['--hosts', '4', ...gigabit]),
  algorithms('algorithms-4-hosts-1gbit', '4 hosts, 1 Gbit/s', large, ['--hosts', '4', ...gigabit]),
  algorithms('algorithms-8-hosts-1gbit-small', '8 hosts, 1 Gbit/s, small tensors', small, ['--hosts', '8', ...gigabit]),
  algorithms('algorithms-8-hosts-1gbit', '8 hosts, 1 Gbit/s', large, ['--hosts', '8', ...gigabit]),
  algorithms('algorithms-4-hosts-1gbit-500us', '4 hosts, 1 Gbit/s, 500 µs one way', upTo16MiB, ['--hosts', '4', ...delayed]),
  algorithms('algorithms-4x2-1gbit', '4 hosts of 2 ranks, 1 Gbit/s', upTo16MiB, ['--hosts', '4', '--ranks-per-host', '2', ...gigabit]),
  {
    name: 'overlap-4-hosts',
    title: 'overlap: 4 hosts, 1 Gbit/s, 500 µs one way',
    kind: 'overlap',
    command: ['--import', 'tsx', 'bench/overlap/run.ts', '--hosts', '4', ...delayed, '--out', '{out}/overlap-4-hosts.json'],
    ...betweenHosts,
  },
  report('kvstore', 'the parameter server', 'bench/kvstore/run.ts'),
  ...[2, 5, 10].map((rate): Measurement => ({
    name: `kvstore-network-${rate}gbit`,
    title: `the parameter server between two hosts, ${rate} Gbit/s`,
    kind: 'report',
    command: [
      '--import',
      'tsx',
      'bench/kvstore/network.ts',
      '--rate-mbit',
      `${rate}000`,
      '--out',
      `{out}/kvstore-network-${rate}gbit.json`,
    ],
    ...betweenHosts,
  })),
  report('messaging', 'messages', 'bench/messaging/run.ts'),
  report('fabric', 'the fabric', 'bench/fabric/run.ts'),
  report('scheduler', 'the scheduler', 'bench/scheduler/run.ts'),
  report('scheduler-replay', 'scheduling on models of several sizes, replayed on virtual time', 'bench/scheduler/replay.ts'),
  report('scheduler-giant', 'one giant tensor, whole and in parts, on a shaped network', 'bench/scheduler/giant-tensor.ts'),
  report('scheduler-tuned', 'the tuner beside a grid of credits and partitions, on a shaped network', 'bench/scheduler/tuned.ts'),
  report('tfjs-products', 'products of transposed matrices in TensorFlow.js, its kernels and ours', 'bench/tfjs/products.ts'),
  report('scheduler-training', 'scheduling with a TensorFlow.js model on shaped networks', 'bench/scheduler/training.ts'),
  report('rendezvous', 'tensors between two processes of one host', 'bench/rendezvous/run.ts'),
  report('devices', "tensors in buffers of SwiftShader's WebGPU device, 2 ranks of one host", 'bench/devices/run.ts'),
  {
    name: 'rendezvous-network',
    title: 'tensors between two hosts, 2 Gbit/s',
    kind: 'report',
    command: ['--import', 'tsx', 'bench/rendezvous/run.ts', '--network', '--rate-mbit', '2000', '--out', '{out}/rendezvous-network.json'],
    ...betweenHosts,
  },
  {
    name: 'rendezvous-network-4gbit',
    title: "VGG16's tensors between two hosts, 4 Gbit/s",
    kind: 'report',
    command: [
      ...['--import', 'tsx', 'bench/rendezvous/run.ts', '--network', '--rate-mbit', '4000', '--cases', 'VGG16'],
      ...['--out', '{out}/rendezvous-network-4gbit.json'],
    ],
    ...betweenHosts,
  },
  {
    name: 'rendezvous-network-10gbit',
    title: 'standing requests between two hosts, 10 Gbit/s',
    kind: 'report',
    command: [
      ...['--import', 'tsx', 'bench/rendezvous/run.ts', '--network', '--rate-mbit', '10000', '--cases', '64 KiB'],
      ...['--out', '{out}/rendezvous-network-10gbit.json'],
    ],
    ...betweenHosts,
  },
  report('rendezvous-replay', 'training steps of VGG16 replayed, 1 parameter server and 1 to 8 workers', 'bench/rendezvous/replay.ts'),
  graph('graph-one-host', 'wide & deep, 1 parameter server and 5 workers of one host', 'run.ts', [
    '--rounds',
    '3',
    '--steps',
    '5',
    ...graphWays,
  ]),
  {
    ...graph('graph-6-hosts-1gbit', 'wide & deep, 1 parameter server and 5 workers, 1 Gbit/s', 'run.ts', [
      ...['--network', ...gigabit, '--rounds', '3', '--steps', '5', '--ways', 'gRPC unfused,gRPC static,fabric unfused,fabric static'],
    ]),
    ...betweenHosts,
  },
  graph('graph-workers', 'wide & deep, 1 parameter server and 1 to 16 workers of one host', 'scaling.ts', [
    ...['--workers', '1,2,4,8,16', '--rounds', '2', '--steps', '3'],
  ]),
  // A round takes ten minutes on two CPUs.
  graph('graph-32-workers', 'wide & deep, 1 parameter server and 32 workers of one host', 'scaling.ts', [
    ...['--workers', '32', '--rounds', '1', '--steps', '2'],
  ]),
  graph('graph-late-tensor', 'one late tensor of a group', 'late-tensor.ts'),
  graph('graph-partition', 'partitioning large graphs', 'partition.ts'),
  graph('graph-small-nodes', 'small operations in a graph, and called in TensorFlow.js', 'small-nodes.ts'),
  graph('graph-many-workers', 'hundreds of workers, simulated', 'many-workers.ts'),
  report('report-large', 'the page of a run of 256 ranks, of a gigabyte of traces', 'bench/report/run.ts'),
  report('encryption', 'encryption between hosts, on and off', 'bench/network/encryption.ts'),
  report('metrics', 'the cost of metrics', 'bench/metrics/run.ts'),
  report('start', 'starting and ending a job', 'bench/start/run.ts'),
  {
    name: 'elastic',
    title: 'the time from the loss of a rank until the next all-reduce',
    kind: 'report',
    command: ['--import', 'tsx', 'bench/elastic/run.ts', '--rounds', '40', '--ranks', '2,4,8', '--out', '{out}/elastic.json'],
  },
  {
    name: 'start-64-ranks',
    title: 'starting and ending a job of 64 ranks',
    kind: 'report',
    command: ['--import', 'tsx', 'bench/start/run.ts', '--ranks', '64', '--rounds', '3', '--out', '{out}/start-64-ranks.json'],
  },
  simulated('simulate-micro-benchmarks', "the micro-benchmarks of Fairring's document, simulated", [
    '--micro-benchmarks',
    '--buckets',
    '32',
  ]),
  simulated('simulate-128-hosts', '1,024 ranks, simulated', [
    ...['all-reduce', '--hosts', '128', '--ranks-per-host', '8', '--bytes', '25MiB'],
    ...['--algorithms', 'fairring,halving-doubling,auto'],
  ]),
];

function peers(name: string, title: string, args: readonly string[]): Measurement {
  return { name, title, kind: 'peers', command: ['--import', 'tsx', 'bench/peers/run.ts', ...args, '--name', name, '--out', '{out}'] };
}

function network(name: string, title: string, args: readonly string[]): Measurement {
  return peers(name, title, ['--only', 'shoal sync,open mpi,gloo', ...args]);
}

/** `place`: the hosts of the network that the ranks are on; without, they are on this one. */
function algorithms(name: string, title: string, args: readonly string[], place?: readonly string[]): Measurement {
  const flags = ['--algorithms', 'all', '--json', `{out}/${name}.json`];
  const command = ['dist/tools/cli/main.js', 'bench', 'all-reduce', ...args, ...flags];
  if (place === undefined) return { name, title, kind: 'algorithms', command };
  const onHosts = ['--import', 'tsx', 'bench/network/run.ts', ...place, '--', 'node', ...command];
  return { name, title, kind: 'algorithms', command: onHosts, ...betweenHosts };
}

function report(name: string, title: string, program: string): Measurement {
  return { name, title, kind: 'report', command: ['--import', 'tsx', program, '--out', `{out}/${name}.json`] };
}

function graph(name: string, title: string, program: string, args: readonly string[] = []): Measurement {
  const { command, ...measurement } = report(name, title, `bench/graph/${program}`);
  return { ...measurement, command: [...command, ...args] };
}

function simulated(name: string, title: string, args: readonly string[]): Measurement {
  return { name, title, kind: 'report', command: ['dist/tools/cli/main.js', 'simulate', ...args, '--json', `{out}/${name}.json`] };
}
