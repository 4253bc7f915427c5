/** Selects the test files that the pass without the native addon need not repeat: those that cannot tell whether it is there, and
 *  those for which a person has declared the outcome to be the same. Pure functions over sources. */
import { posix } from 'node:path';
import type { SourceFile } from './house-rules.ts';

const addonLoader = 'src/memory/native.ts';
/** Imports that lead anywhere: the package's own name leads to dist/. */
const elsewhere = /['"]node:(child_process|worker_threads|cluster)['"]|['"]shoal(\/[\w-]+)*['"]/;
const relativePath = /['"`](\.{1,2}\/[^'"`\n]+)['"`]/g;

/** Files that are not run, and the reason. */
export interface LeftOut {
  readonly files: readonly string[];
  readonly reason: string;
}

/** Files that start processes or threads, or import more than they use, so that their imports do not tell. */
export const sameWithoutAddon: readonly LeftOut[] = [
  {
    reason: 'about sources, documents and the package, which are the same',
    files: [
      'src/cli/completion/shell-completion.test.ts',
      'test/addon-independence.test.ts',
      'test/built-package.test.ts',
      'test/counterparts.test.ts',
      'test/docs.test.ts',
      'test/house-rules.test.ts',
      'test/install-native.test.ts',
      'test/layers.test.ts',
      'test/public-api.test.ts',
      'test/repository.test.ts',
      'test/summary-reporter.test.ts',
    ],
  },
  {
    reason: 'benchmarks, tuning and reports show what other tests run without the addon; how they count, choose and print is the same',
    files: [
      'src/bench/pattern.test.ts',
      'src/bench/run-bench.test.ts',
      'src/report/report.test.ts',
      'test/bench-rendezvous.test.ts',
      'test/pages.test.ts',
      'test/schedule-prediction.test.ts',
      'test/watch.test.ts',
      'test/bench-command.test.ts',
      'test/bench-graph.test.ts',
      'test/bench-memory.test.ts',
      'test/bench-network.test.ts',
      'test/bench-peers.test.ts',
      'test/bench-start.test.ts',
      'test/fabric-bench.test.ts',
      'test/kvstore-bench.test.ts',
      'test/messaging-bench.test.ts',
      'test/tune-command.test.ts',
    ],
  },
  {
    reason:
      'launchers agree, show what ranks write, and serve sockets of ZeroMQ and of the store without the addon as with it; launch-run starts ranks without',
    files: [
      'src/launch/node-agreement.test.ts',
      'src/messaging/backends/zeromq-channel.test.ts',
      'src/messaging/backends/zeromq.test.ts',
      'test/launch-hints.test.ts',
      'test/launch-nodes.test.ts',
      'test/launch-output.test.ts',
      'test/messaging-exit.test.ts',
      'test/messaging-loss.test.ts',
      'test/messaging-nodes.test.ts',
      'test/messaging-processes.test.ts',
      'test/messaging-soak.test.ts',
      'test/messaging-threads.test.ts',
      'test/report-page.test.ts',
      'test/store-mpirun.test.ts',
      'test/store-processes.test.ts',
    ],
  },
  {
    reason: 'who fails over to whom is decided by messages; kvstore-conformance carries values without the addon',
    files: [
      'src/kvstore/ledger.test.ts',
      'src/kvstore/protocol/wire.test.ts',
      'test/kvstore-checkpoint.test.ts',
      'test/kvstore-faults.test.ts',
      'test/kvstore-groups.test.ts',
      'test/kvstore-replicas.test.ts',
      'test/kvstore-topologies.test.ts',
    ],
  },
  {
    reason: 'collective stores in one process are as those of several: kvstore-collective makes the same checks without the addon',
    files: ['src/kvstore/collective/collective-store.test.ts'],
  },
  {
    reason: 'how ranks join and stop is decided by the store and by links; group-processes and fabric-processes join without the addon',
    files: ['test/hostile-connections.test.ts', 'test/many-ranks.test.ts', 'test/start-stop.test.ts', 'test/stopped-rank.test.ts'],
  },
  {
    reason: 'without the addon ranks of one host have sockets between them, as ranks of several hosts do: group-processes runs that',
    files: ['test/fails-in-flight.test.ts', 'test/hosts-processes.test.ts'],
  },
  {
    reason: 'what a thread hosts, and in which order parts of values are sent, is the same: comm-thread and src/kvstore/scheduled run here',
    files: ['test/kvstore-scheduled.test.ts', 'test/one-comm-thread.test.ts'],
  },
  {
    reason: 'between processes tensors and steps travel over sockets without the addon: the conformance suites of src/rendezvous run that',
    files: ['test/graph-processes.test.ts', 'test/rendezvous-processes.test.ts'],
  },
  {
    reason: 'examples of training; ddp-equivalence trains without the addon',
    files: [
      'test/ddp-char-lm.test.ts',
      'test/ddp-demo.test.ts',
      'test/ddp-jax-stages.test.ts',
      'test/ddp-tfjs.test.ts',
      'test/dien-like.test.ts',
      'test/wide-deep.test.ts',
    ],
  },
  {
    reason: 'without the addon no call takes the host path; how many operations of hosts are in flight is decided by counters',
    files: ['src/group/bulk-operations.test.ts', 'src/group/fast/host-path.test.ts'],
  },
  {
    reason: 'jax-js on device webgpu ends without the addon (docs/devices.md, Limits); src/group/device runs here, on a device of its own',
    files: ['test/device-processes.test.ts'],
  },
  {
    reason:
      'sums have the bits of plans and kernels: src/memory compares kernels and step machines in JavaScript with those of the addon; src/group/random-programs runs them here',
    files: ['src/group/fairring.test.ts', 'src/group/reductions.test.ts', 'src/group/reproducible.test.ts'],
  },
  {
    reason: 'what is scheduled when is decided by messages and counters; scheduled-processes runs without the addon',
    files: ['src/group/schedule/schedule.test.ts', 'src/group/schedule/tuning.test.ts'],
  },
  {
    reason:
      'tasks call each other, and begin steps, by messages; the conformance suites of src/rendezvous carry their tensors without the addon',
    files: [
      'src/graph/cluster/cluster.test.ts',
      'src/graph/cluster/receives.test.ts',
      'src/graph/rpc/rpc-world.test.ts',
      'src/graph/rpc/rpc.test.ts',
    ],
  },
  {
    reason: 'who saves and loads what is the same; ddp-equivalence trains without the addon',
    files: ['src/ddp/checkpoints.test.ts', 'test/ddp-checkpoints.test.ts'],
  },
  {
    reason: 'worlds in one process have memory, sockets and kernels made for them; src/group/random-programs runs here',
    files: ['test/worlds.test.ts'],
  },
];

/** All files that are left out, of all sources of the repository. */
export function leftOutWithoutAddon(files: readonly SourceFile[]): LeftOut[] {
  const reason = 'nothing they import reaches the addon';
  return [{ files: testsIndependentOfAddon(files), reason }, ...sameWithoutAddon];
}

/** Paths of the test files among `files`, which are all sources of the repository, that reach neither the addon's loader nor
 *  another process or thread; sorted. It errs on the side of repeating: every relative path in quotes counts as an import, and a
 *  file that may start a process or a thread, whose code is not seen here, counts as dependent. */
export function testsIndependentOfAddon(files: readonly SourceFile[]): string[] {
  const textOf = new Map(files.map(({ path, text }) => [path, text]));
  const independent = (test: string): boolean => {
    const reached = new Set([test]);
    for (const path of reached) {
      const text = textOf.get(path);
      if (path === addonLoader || text === undefined || elsewhere.test(text)) return false;
      for (const [, specifier] of text.matchAll(relativePath)) {
        const target = posix.join(posix.dirname(path), specifier);
        // Threads are started from built JavaScript; other files are data.
        if (textOf.has(target) || target.endsWith('.js')) reached.add(target);
      }
    }
    return true;
  };
  return [...textOf.keys()].filter((path) => path.endsWith('.test.ts') && independent(path)).sort();
}
