/** The algorithms Shoal knows. A new one is its own file plus one line here. */
import type { Algorithm } from './algorithms/algorithm.ts';
import { direct } from './algorithms/direct.ts';
import { fairring } from './algorithms/fairring.ts';
import { halvingDoubling } from './algorithms/halving-doubling.ts';
import { hostDirect } from './algorithms/host-direct.ts';
import { hostStaged } from './algorithms/host-staged.ts';
import { mailbox } from './algorithms/mailbox.ts';
import { oneShot } from './algorithms/one-shot.ts';
import { ring } from './algorithms/ring.ts';
import { tree } from './algorithms/tree.ts';

export const algorithms: readonly Algorithm[] = [mailbox, hostDirect, hostStaged, oneShot, tree, halvingDoubling, direct, fairring, ring];
