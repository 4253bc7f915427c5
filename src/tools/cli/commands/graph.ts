/** `shoal graph`: shows how a graph is partitioned, before and after receives are fused. */
import { Command, Option } from 'commander';
import { collect, positive } from '../option-values.ts';
import type { GraphFlags } from '../graph/run-graph.ts';

export function graphCommand(): Command {
  return new Command('graph')
    .summary('draw the partitions of a graph, before and after fusion')
    .description(
      'Partitions a graph that encodeGraph() of shoal/graph has written, and draws its partitions without and with fused receives.',
    )
    .argument('<file>', 'the graph')
    .option('-o, --out <file>', 'page to write: .html with both pictures, .svg with the one after fusion; without: the numbers only')
    .addOption(severalOption('--target <name>', 'a node that the step runs, such as train; may be repeated', 'all nodes'))
    .addOption(severalOption('--feed <name>', 'an output that the step is fed, such as x:0; may be repeated', 'all placeholders'))
    .option('--policy <name>', 'source-wave or dest-wave', 'source-wave')
    .option('--boxes <count>', 'boxes of a picture at most; beyond, nodes of one scope are one box', positive, 300)
    .option('--json', 'the numbers as JSON, for programs')
    .action(async (file: string, flags: GraphFlags) => {
      const { runGraph } = await import('../graph/run-graph.ts');
      process.stdout.write(runGraph(file, flags));
    });
}

function severalOption(flags: string, about: string, none: string): Option {
  return new Option(flags, about).argParser(collect).default([], none);
}
