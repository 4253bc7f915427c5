/** Models as the scheduler sees them: the bytes of each layer's gradient, and the times of its passes. Bytes are of float32
 *  parameters, exact; times are shares of a step by multiply-adds, of which a backward pass takes two for each of the forward pass. */

export interface LayerTrace {
  readonly name: string;
  readonly bytes: number;
  readonly forwardMs: number;
  readonly backwardMs: number;
}

export interface ModelTrace {
  readonly name: string;
  /** All layers, in the order of the forward pass. */
  readonly layers: readonly LayerTrace[];
  /** Samples, or tokens, that a worker computes in a step. */
  readonly batch: number;
  readonly unit: string;
}

interface LayerSize {
  readonly name: string;
  readonly parameters: number;
  readonly multiplyAdds: number;
}

export type ModelName = 'vgg16' | 'resnet50' | 'transformer' | 'alexnet' | 'mobilenet' | 'gpt2';

/** Time of a step on one V100 in float32, about: 230, 360, 2,600 and 1,000 images a second, batches of 32; 2,560 and 12,800
 *  tokens a second. */
const models: Readonly<Record<ModelName, { sizes: () => LayerSize[]; stepMs: number; batch: number; unit: string }>> = {
  vgg16: { sizes: vgg16, stepMs: 139, batch: 32, unit: 'images' },
  resnet50: { sizes: resnet50, stepMs: 89, batch: 32, unit: 'images' },
  transformer: { sizes: transformer, stepMs: 200, batch: 512, unit: 'tokens' },
  alexnet: { sizes: alexnet, stepMs: 12, batch: 32, unit: 'images' },
  mobilenet: { sizes: mobilenet, stepMs: 32, batch: 32, unit: 'images' },
  gpt2: { sizes: gpt2, stepMs: 80, batch: 1024, unit: 'tokens' },
};

export const modelNames = Object.keys(models) as readonly ModelName[];

/** @param scale factor of bytes and times: the same shape, smaller. */
export function modelTrace(name: ModelName, scale = 1): ModelTrace {
  const { sizes, stepMs, batch, unit } = models[name];
  const list = sizes();
  const all = list.reduce((sum, { multiplyAdds }) => sum + multiplyAdds, 0);
  const layers = list.map(({ name: layer, parameters, multiplyAdds }) => {
    const share = (stepMs * scale * multiplyAdds) / all;
    return { name: layer, bytes: 4 * Math.max(1, Math.round(parameters * scale)), forwardMs: share / 3, backwardMs: (2 * share) / 3 };
  });
  return { name, layers, batch, unit };
}

/** Weights and biases of a convolution of a square picture. */
function convolution(name: string, shape: { from: number; to: number; kernel: number; side: number; bias?: boolean }): LayerSize {
  const { from, to, kernel, side, bias = true } = shape;
  const weights = from * to * kernel * kernel;
  return { name, parameters: weights + (bias ? to : 0), multiplyAdds: weights * side * side };
}

function dense(name: string, from: number, to: number, times = 1): LayerSize {
  return { name, parameters: from * to + to, multiplyAdds: from * to * times };
}

/** VGG16: Simonyan & Zisserman 2015, configuration D: 138,357,544 parameters. */
function vgg16(): LayerSize[] {
  const blocks = [
    [3, 64, 224, 2],
    [64, 128, 112, 2],
    [128, 256, 56, 3],
    [256, 512, 28, 3],
    [512, 512, 14, 3],
  ];
  const convolutions = blocks.flatMap(([from, to, side, count], block) =>
    Array.from({ length: count }, (_, index) =>
      convolution(`conv${block + 1}_${index + 1}`, { from: index === 0 ? from : to, to, kernel: 3, side }),
    ),
  );
  return [...convolutions, dense('fc6', 25_088, 4096), dense('fc7', 4096, 4096), dense('fc8', 4096, 1000)];
}

/** ResNet-50: He et al. 2016: 25,557,032 parameters, with those of the normalisations. */
function resnet50(): LayerSize[] {
  const layers: LayerSize[] = [];
  const normalised = (name: string, shape: { from: number; to: number; kernel: number; side: number }): void => {
    const { parameters, multiplyAdds } = convolution(name, { ...shape, bias: false });
    layers.push({ name, parameters: parameters + 2 * shape.to, multiplyAdds });
  };
  normalised('conv1', { from: 3, to: 64, kernel: 7, side: 112 });
  const stages = [
    [64, 56, 3],
    [128, 28, 4],
    [256, 14, 6],
    [512, 7, 3],
  ];
  let from = 64;
  for (const [stage, [width, side, count]] of stages.entries()) {
    for (let block = 0; block < count; block++) {
      const name = `layer${stage + 1}.${block}`;
      normalised(`${name}.conv1`, { from, to: width, kernel: 1, side });
      normalised(`${name}.conv2`, { from: width, to: width, kernel: 3, side });
      normalised(`${name}.conv3`, { from: width, to: 4 * width, kernel: 1, side });
      if (block === 0) normalised(`${name}.downsample`, { from, to: 4 * width, kernel: 1, side });
      from = 4 * width;
    }
  }
  layers.push(dense('fc', 2048, 1000));
  return layers;
}

/** Transformer: Vaswani et al. 2017, "big", one matrix of 37,000 words for both ends: about 214 million parameters. */
function transformer(): LayerSize[] {
  const [width, inner, vocabulary, tokens] = [1024, 4096, 37_000, 512];
  const block = (name: string, attentions: number): LayerSize[] => [
    ...Array.from({ length: attentions }, (_, index) => dense(`${name}.attention${index}`, width, 4 * width, tokens)),
    dense(`${name}.ffn1`, width, inner, tokens),
    dense(`${name}.ffn2`, inner, width, tokens),
  ];
  return [
    // The matrix is looked up at the beginning, and multiplied by at the end: its gradient is complete when the backward pass is over.
    { name: 'embedding', parameters: vocabulary * width, multiplyAdds: width * tokens },
    ...Array.from({ length: 6 }, (_, layer) => block(`encoder${layer}`, 1)).flat(),
    ...Array.from({ length: 6 }, (_, layer) => block(`decoder${layer}`, 2)).flat(),
    // The projection multiplies by the embedding's matrix; only the bias is its own.
    { name: 'projection', parameters: vocabulary, multiplyAdds: width * vocabulary * tokens },
  ];
}

/** AlexNet: Krizhevsky 2014, the one tower: 61,100,840 parameters, nearly all of them late. */
function alexnet(): LayerSize[] {
  return [
    convolution('conv1', { from: 3, to: 64, kernel: 11, side: 55 }),
    convolution('conv2', { from: 64, to: 192, kernel: 5, side: 27 }),
    convolution('conv3', { from: 192, to: 384, kernel: 3, side: 13 }),
    convolution('conv4', { from: 384, to: 256, kernel: 3, side: 13 }),
    convolution('conv5', { from: 256, to: 256, kernel: 3, side: 13 }),
    ...[dense('fc6', 9216, 4096), dense('fc7', 4096, 4096), dense('fc8', 4096, 1000)],
  ];
}

/** MobileNet: Howard et al. 2017, width 1, 224 pixels: 4,231,976 parameters, with those of the normalisations. */
function mobilenet(): LayerSize[] {
  const layers: LayerSize[] = [{ name: 'conv1', parameters: 3 * 32 * 9 + 64, multiplyAdds: 3 * 32 * 9 * 112 * 112 }];
  const blocks = [
    [32, 64, 112],
    [64, 128, 56],
    [128, 128, 56],
    [128, 256, 28],
    [256, 256, 28],
    [256, 512, 14],
  ];
  for (let block = 0; block < 5; block++) blocks.push([512, 512, 14]);
  for (const [index, [from, to, side]] of [...blocks, [512, 1024, 7], [1024, 1024, 7]].entries()) {
    layers.push({ name: `depthwise${index}`, parameters: from * 9 + 2 * from, multiplyAdds: from * 9 * side * side });
    layers.push({ name: `pointwise${index}`, parameters: from * to + 2 * to, multiplyAdds: from * to * side * side });
  }
  return [...layers, dense('fc', 1024, 1000)];
}

/** GPT-2: Radford et al. 2019, the small one: 124,439,808 parameters, a third of them one matrix for both ends. */
function gpt2(): LayerSize[] {
  const [width, vocabulary, tokens] = [768, 50_257, 1024];
  const block = (name: string): LayerSize[] => [
    { ...dense(`${name}.qkv`, width, 3 * width, tokens), parameters: width * 3 * width + 3 * width + 2 * width },
    dense(`${name}.projection`, width, width, tokens),
    { ...dense(`${name}.ffn1`, width, 4 * width, tokens), parameters: width * 4 * width + 4 * width + 2 * width },
    dense(`${name}.ffn2`, 4 * width, width, tokens),
  ];
  return [
    { name: 'embedding', parameters: (vocabulary + 1024) * width, multiplyAdds: width * tokens },
    ...Array.from({ length: 12 }, (_, layer) => block(`block${layer}`)).flat(),
    // The final product with the vocabulary uses the embedding's matrix, so it adds no parameters.
    { name: 'norm', parameters: 2 * width, multiplyAdds: width * vocabulary * tokens },
  ];
}
