/** Receives of equal wave may be one. Waves grow along every edge of the graph, so what waits for a group cannot be
 *  what the group waits for.
 *
 *      wave      0        1        2        3
 *               a ─────▶ b ─────▶ d ─────▶ e           every node: one more than the last of its inputs;
 *               x ──────────────▶ y                     what leaves a loop: more than all that enters it
 *
 *  Loops matter: what leaves a loop may depend, by way of the edges that go back, on everything that enters it. Waves that
 *  look at edges alone and leave out those that go back, as those of the document and of its implementation do, can fuse a receive with
 *  what it waits for. */
import type { Transfer } from '../placement/device-transfers.ts';
import type { Node } from '../structure/graph-node.ts';

/** Transfers between two devices may be one request when their waves are equal. A policy that puts a transfer beside one that waits for
 *  it is a deadlock, which partitioning finds and refuses. */
export interface FusePolicy {
  /** The name of the policy in messages. */
  readonly name: string;
  /** The wave of a transfer. @param levelOf the wave of a node. */
  readonly waveOf: (transfer: Transfer, levelOf: (node: Node) => number) => number;
}

/** The wave of the source, as in the document's figure 4: transfers that are ready at about the same time go together. */
export const sourceWave: FusePolicy = { name: 'source-wave', waveOf: ({ source }, levelOf) => levelOf(source) };

/** The wave of the first consumer, as in the document's implementation: transfers that are needed at about the same time go together. */
export const destWave: FusePolicy = { name: 'dest-wave', waveOf: ({ consumers }, levelOf) => Math.min(...consumers.map(levelOf)) };

export const fusePolicies: readonly FusePolicy[] = [sourceWave, destWave];
