/** The operations that exist; each is one entry in its family's file. */
import type { OpDefinition } from '../structure/definition.ts';
import { arrayOps } from './array.ts';
import { callOps } from './call.ts';
import { controlFlowOps } from './control-flow.ts';
import { convolutionOps } from './convolution.ts';
import { embeddingOps } from './embedding.ts';
import { gradientOps } from './gradient.ts';
import { lookupOps } from './lookup.ts';
import { mathOps } from './math.ts';
import { matrixOps } from './matrix.ts';
import { nnOps } from './nn.ts';
import { randomOps } from './random.ts';
import { reductionOps } from './reduction.ts';
import { shapingOps } from './shaping.ts';
import { stateOps } from './state.ts';
import { trainingOps } from './training.ts';
import { transferOps } from './transfer.ts';

/** The operations, family by family. */
export const operations: readonly OpDefinition[] = [
  ...arrayOps,
  ...shapingOps,
  ...mathOps,
  ...matrixOps,
  ...reductionOps,
  ...randomOps,
  ...nnOps,
  ...convolutionOps,
  ...lookupOps,
  ...stateOps,
  ...embeddingOps,
  ...trainingOps,
  ...gradientOps,
  ...controlFlowOps,
  ...callOps,
  ...transferOps,
];
