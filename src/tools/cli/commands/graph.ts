/** `shoal graph`: shows how a graph is partitioned, before and after receives are fused. */
import { Command, Option } from 'commander';
import { collect, positive } from '../option-values.ts';
import type { GraphFlags } from '../graph/run-graph.ts';

export function graphCommand(): Command {
  return new Command('graph')
    .summary('draw the partitions of a graph, before and after fusion')
    .description('Draws the partitions of a graph that encodeGraph() of shoal/graph has written, without and with fused receives.')
    .argument('<file>', 'the graph')
    .option('-o, --out <file>', 'page to write: .html with both pictures, .svg with the one after fusion; without: the numbers only')
    .addOption(new Option('--target <name>', 'a node to run, such as train; repeatable').argParser(collect).default([], 'all nodes'))
    .addOption(new Option('--feed <name>', 'an output to feed, such as x:0; repeatable').argParser(collect).default([], 'all placeholders'))
    .option('--policy <name>', 'source-wave or dest-wave', 'source-wave')
    .option('--boxes <count>', 'boxes of a picture at most; beyond, nodes of one scope are one box', positive, 300)
    .option('--json', 'the numbers as JSON, for programs')
    .action(async (file: string, flags: GraphFlags) => {
      const { runGraph } = await import('../graph/run-graph.ts');
      process.stdout.write(runGraph(file, flags));
    });
}
