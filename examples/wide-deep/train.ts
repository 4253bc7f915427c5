/** Trains a wide & deep model whose tables are on parameter servers:
 *
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts                      every worker by itself, a request per tensor
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --fuse               receives are fused when the graph is partitioned
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --recv-some          … when they run
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --sync               one step of all workers at a time
 *    shoal run --ps 2 --workers 3 examples/wide-deep/train.ts --criteo train.txt   your own data
 *
 *  `--checkpoint file` goes on from the file where there is one, and saves to it every 100 steps and at the end; `--save-graph file` is for
 *  `shoal graph file`. Parameter servers run this script as well, as far as `join`.
 *
 *  A run takes about 70 s of CPU time, measured on two CPUs. */
import { trainWideDeep } from './wide-deep.ts';

await trainWideDeep();
