/** The tables of measurements of messages, rendezvous, the parameter server between hosts, libfabric and the scheduler, out of
 *  bench/results: for docs/performance.md. */
import { sizeText, table, type ReadResult } from './performance-tables.ts';

/** Sections in the order of the layers; a section without results is left out. */
export function systemTables(read: ReadResult): string {
  return [firstCalls, libfabric, messages, rendezvous, kvstoreNetwork, training, replayed].flatMap((section) => section(read)).join('\n\n');
}

interface FirstCallsReport {
  readonly rows: readonly {
    readonly name: string;
    readonly firstUs: number;
    readonly secondUs: number;
    readonly warmUs: number;
    readonly firstMedianUs?: number;
  }[];
}

function firstCalls(read: ReadResult): string[] {
  return reported(read, 'first-calls', ({ rows }: FirstCallsReport) => {
    const cells = rows.map(({ name, firstUs, secondUs, warmUs, firstMedianUs }) => [
      name,
      ...[firstUs, firstMedianUs, secondUs, warmUs].map((us) => (us === undefined ? '' : `${us.toFixed(2)} µs`)),
      ratio(firstUs / warmUs),
    ]);
    const words = '2 ranks of one host all-reduce 8 bytes from the start of their processes: the time of a call, medians of the rounds.';
    const head = ['', 'first 1,000 calls, mean', 'their median', 'second 1,000, mean', 'warm', 'mean of the first ÷ warm'];
    return `${words}\n\n${table(head, cells)}`;
  });
}

interface FabricReport {
  readonly results: readonly {
    readonly fabric: string;
    readonly bytes: number;
    readonly gigabytesPerSecond?: { readonly median: number };
    readonly latencyUs?: { readonly median: number };
  }[];
}

function libfabric(read: ReadResult): string[] {
  return reported(read, 'fabric-libfabric', ({ results }: FabricReport) => {
    const medians = results.map(({ fabric, bytes, gigabytesPerSecond, latencyUs }) => ({
      fabric,
      case: latencyUs === undefined ? `${sizeText(bytes)}, bandwidth` : `${bytes} bytes, latency`,
      median: (gigabytesPerSecond ?? latencyUs)!.median,
    }));
    const of = (fabric: string, name: string): number => medians.find((each) => each.fabric === fabric && each.case === name)!.median;
    const cases = [...new Set(medians.map((each) => each.case))];
    const rows = [
      ['libfabric-tcp;ofi_rxm', 'tcp'],
      ['libfabric-shm', 'shm'],
    ].map(([theirs, ours]) => [`\`${theirs}\` ÷ \`${ours}\``, ...cases.map((name) => ratio(of(theirs, name) / of(ours, name)))]);
    return `libfabric's providers beside Shoal's own fabrics, two processes of one host:\n\n${table(['writes of', ...cases], rows)}`;
  });
}

function messages(read: ReadResult): string[] {
  return reported(read, 'messaging', ({ ratios }: { readonly ratios: Readonly<Record<string, number>> }) => {
    const rows = Object.entries(ratios).map(([name, value]) => [
      name.replace('1048576 B', '1 MiB').replace('roundTripUs', 'round trip'),
      ratio(value),
    ]);
    return `Messages between two processes, or threads (\`inproc\`):\n\n${table(['', 'ratio'], rows)}`;
  });
}

interface RendezvousReport {
  readonly place: string;
  readonly results: readonly { readonly case: string; readonly contestant: string; readonly stepMs: { readonly median: number } }[];
}

function rendezvous(read: ReadResult): string[] {
  const names = ['rendezvous', 'rendezvous-network', 'rendezvous-network-4gbit', 'rendezvous-network-10gbit'];
  const contestants = [
    'shm',
    'tcp',
    'tcp, requests',
    'tcp, standing requests',
    'shm with copies',
    'tcp with copies',
    'a plain socket',
    'grpc',
  ];
  const rows = names.flatMap((name) => {
    const text = read(name);
    if (text === undefined) return [];
    const { place, results } = JSON.parse(text) as RendezvousReport;
    return [...new Set(results.map((each) => each.case))].map((one) => {
      const cells = contestants.map((who) => results.find((each) => each.case === one && each.contestant === who)?.stepMs.median);
      return [`${one}, [${place}](../bench/results/${name}.json)`, ...cells.map((ms) => (ms === undefined ? '' : String(ms)))];
    });
  });
  if (rows.length === 0) return [];
  const words =
    'Two processes, milliseconds a step: VGG16 is 32 tensors with 553 MB; 1000 × 4 KiB is one request message. gRPC makes one call per request. ' +
    '*With copies* moves tensors through staging memory at both ends. *A plain socket* is asked by a byte, and reads into an array.';
  return [`### Rendezvous\n\n${words}\n\n${table(['case', ...contestants.map((who) => (who === 'grpc' ? 'gRPC' : who))], rows)}`];
}

interface NetworkReport {
  readonly place: string;
  readonly results: readonly {
    readonly way: string;
    readonly contestants: readonly { readonly name: string; readonly medianMs: number; readonly bestShareOfLine: number }[];
  }[];
}

function kvstoreNetwork(read: ReadResult): string[] {
  const rows = ['kvstore-network-2gbit', 'kvstore-network-5gbit', 'kvstore-network-10gbit'].flatMap((name) => {
    const text = read(name);
    if (text === undefined) return [];
    const { place, results } = JSON.parse(text) as NetworkReport;
    return ['tcp', 'libfabric'].map((who) => [
      `[${place}](../bench/results/${name}.json), \`${who}\``,
      ...['push', 'pull', 'pushPull'].map((way) => {
        const found = results.find((each) => each.way === way)?.contestants.find((each) => each.name === who);
        return found === undefined ? '' : `${found.medianMs}, ${Math.round(100 * found.bestShareOfLine)} %`;
      }),
    ]);
  });
  if (rows.length === 0) return [];
  const words =
    '1 worker and 1 server, 100 MiB in keys of 4 MiB, without optimiser: median milliseconds, and the best share of the line rate.';
  return [`### Parameter server between hosts\n\n${words}\n\n${table(['', 'push', 'pull', 'pushPull'], rows)}`];
}

interface TrainingReport {
  readonly results: readonly {
    readonly exchange: string;
    readonly rateMbit: number;
    readonly rows: readonly { readonly order: string; readonly medianMs: number }[];
    readonly gains: { readonly overFifoMedian: number };
  }[];
}

function training(read: ReadResult): string[] {
  return reported(read, 'scheduler-training', ({ results }: TrainingReport) => {
    const orders = results[0].rows.map(({ order }) => order);
    const rows = results.map(({ exchange, rateMbit, rows: turns, gains }) => [
      `${exchange}, ${rateMbit} Mbit/s`,
      ...orders.map((order) => turns.find((each) => each.order === order)!.medianMs.toFixed(0)),
      ratio(gains.overFifoMedian),
    ]);
    const words =
      'Training with TensorFlow.js, small early and large late layers; median milliseconds a step. FIFO is first come, first served, and overlaps.';
    return `${words}\n\n${table(['', ...orders, 'scheduled over fifo'], rows)}`;
  });
}

interface ReplayReport {
  readonly rows: readonly { readonly model: string; readonly exchange: string; readonly speedup: number }[];
  readonly published: readonly { readonly model: string; readonly workers: number; readonly speedup: number }[];
}

function replayed(read: ReadResult): string[] {
  return reported(read, 'scheduler-replay', ({ rows: replays, published }: ReplayReport) => {
    const models = [...new Set(replays.map(({ model }) => model))];
    const all = (model: string, exchange: string): number[] =>
      replays.filter((each) => each.model === model && each.exchange === exchange).map(({ speedup }) => speedup);
    const range = (speedups: readonly number[]): string => `${Math.min(...speedups).toFixed(2)} – ${Math.max(...speedups).toFixed(2)}`;
    const known = (model: string): string =>
      published
        .filter((each) => each.model === model)
        .map(({ workers, speedup }) => `${speedup.toFixed(2)} (${workers})`)
        .join(', ');
    const rows = models.map((model) => [model, range(all(model, 'parameter-server')), range(all(model, 'all-reduce')), known(model)]);
    const words = 'Models replayed on virtual time, 8 to 64 workers, 10 to 100 Gbit/s: the speed-up of scheduling over FIFO.';
    return `${words}\n\n${table(['model', 'parameter server', 'all-reduce', 'published (GPUs)'], rows)}`;
  });
}

const titles: Readonly<Record<string, string>> = {
  'first-calls': '### The first calls of a process\n\n',
  'fabric-libfabric': '### libfabric\n\n',
  messaging: '### Messages\n\n',
  'scheduler-training': '### Scheduler\n\n',
};

/** A section of one result, with its title, if it begins one, and the file. */
function reported(read: ReadResult, name: string, text: (report: never) => string): string[] {
  const found = read(name);
  return found === undefined
    ? []
    : [`${titles[name] ?? ''}${text(JSON.parse(found) as never)}\n\n([${name}.json](../bench/results/${name}.json))`];
}

function ratio(value: number): string {
  return `${value < 1 ? value.toFixed(2) : value.toPrecision(3)}×`;
}
