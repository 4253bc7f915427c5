/** Like public-api.test.ts, for `shoal/graph`: every function and class refuses wrong arguments. */
import { describe, expect, it } from 'vitest';
import * as graph from '../../src/graph.ts';
import type { Op } from '../../src/graph/ops/op.ts';
import { argument, call, fields, hasAll, options, walk, type Exports, type PublicCall } from '../support/public-calls.ts';

const g = new graph.GraphBuilder();
const device = '/job:worker/task:0/device:CPU:0';
/** Valid inputs, by letter. */
const values = {
  /** float32 [2, 2]. */
  f: graph.placeholder(g, 'float32', [2, 2]),
  /** float32 [2, 2, 2]. */
  F: graph.placeholder(g, 'float32', [2, 2, 2]),
  /** float32 [2]. */
  r: graph.placeholder(g, 'float32', [2]),
  /** float32, a scalar. */
  s: graph.placeholder(g, 'float32', []),
  /** int32 [2]. */
  i: graph.placeholder(g, 'int32', [2]),
  /** int32, a scalar. */
  j: graph.constant(g, { dtype: 'int32', shape: [], data: Int32Array.of(1) }),
  /** bool [2, 2]. */
  b: graph.placeholder(g, 'bool', [2, 2]),
  /** bool, a scalar. */
  p: graph.placeholder(g, 'bool', []),
  v: graph.variable(g, 'float32', [2, 2]),
  w: graph.variable(g, 'float32', [2, 2]),
  x: graph.variable(g, 'float32', [2, 2]),
  /** A counter. */
  t: graph.variable(g, 'float32', []),
  /** Lists. */
  L: [graph.placeholder(g, 'float32', [2]), graph.placeholder(g, 'float32', [2])],
};

const keyed = graph.getEmbeddingVariable(g, 'table', 2);
const nodeOptions = options('name', 'device');
const same = (...inputs: readonly graph.Output[]): readonly graph.Output[] => inputs;
const finished = ((): graph.Graph => {
  const small = new graph.GraphBuilder();
  graph.sum(small, graph.placeholder(small, 'float32', [2], { name: 'x' }));
  return small.finish();
})();

/** An operation with its inputs, a letter each. */
function op<Call>(operation: Op<Call>, inputs: string, attributes: Readonly<Record<string, unknown>> = {}): PublicCall {
  const given = Array.from(inputs).map((letter) => argument(values[letter as keyof typeof values]));
  const run = operation as unknown as (...all: unknown[]) => unknown;
  // The right arguments are accepted.
  expect(run(g, ...given.map(({ value }) => value), attributes), operation.definition.name).toBeDefined();
  const required = Object.keys(attributes).length > 0;
  const last = required ? { value: attributes, takes: [], keys: Object.keys(attributes) } : options('name', 'device');
  return call((...all: unknown[]) => run(g, ...all), ...given, last);
}

function made(Class: new (...given: never[]) => unknown, ...given: Parameters<typeof call>[1][]): PublicCall {
  return call((...all: never[]) => new Class(...all), ...given);
}

function decays() {
  const given = [argument(g), argument(0.1, 'number'), argument(values.j), argument(10, 'number')];
  const [byRate, inSteps] = [argument(0.5, 'number'), options('staircase')];
  return {
    exponentialDecay: call(graph.exponentialDecay, ...given, byRate, inSteps),
    naturalExpDecay: call(graph.naturalExpDecay, ...given, byRate, inSteps),
    inverseTimeDecay: call(graph.inverseTimeDecay, ...given, byRate, inSteps),
    polynomialDecay: call(graph.polynomialDecay, ...given, options('endLearningRate', 'power', 'cycle')),
    cosineDecay: call(graph.cosineDecay, ...given, options('alpha')),
  };
}

describe('shoal/graph', () => {
  const table = {
    abs: op(graph.abs, 'f'),
    add: op(graph.add, 'ff'),
    addN: op(graph.addN, 'L'),
    applyAdagrad: op(graph.applyAdagrad, 'vwf', { learning_rate: 0.1 }),
    applyAdam: op(graph.applyAdam, 'vwxtf', { learning_rate: 0.1 }),
    applyGradientDescent: op(graph.applyGradientDescent, 'vf', { learning_rate: 0.1 }),
    sparseApplyAdagrad: op(graph.sparseApplyAdagrad, 'vwfi', { learning_rate: 0.1 }),
    sparseApplyFtrl: op(graph.sparseApplyFtrl, 'vwxfi', { learning_rate: 0.1 }),
    sparseApplyGradientDescent: op(graph.sparseApplyGradientDescent, 'vfi', { learning_rate: 0.1 }),
    argMax: op(graph.argMax, 'f'),
    assign: op(graph.assign, 'vf'),
    assignAdd: op(graph.assignAdd, 'vf'),
    assignSub: op(graph.assignSub, 'vf'),
    batchMatMul: op(graph.batchMatMul, 'FF'),
    biasAdd: op(graph.biasAdd, 'fr'),
    concat: op(graph.concat, 'L', { axis: 0 }),
    div: op(graph.div, 'ff'),
    equal: op(graph.equal, 'ff'),
    exp: op(graph.exp, 'f'),
    expandDims: op(graph.expandDims, 'f', { axis: 0 }),
    gather: op(graph.gather, 'vi'),
    greater: op(graph.greater, 'ff'),
    greaterEqual: op(graph.greaterEqual, 'ff'),
    notEqual: op(graph.notEqual, 'ff'),
    stopGradient: op(graph.stopGradient, 'f'),
    identity: op(graph.identity, 'f'),
    l2Loss: op(graph.l2Loss, 'f'),
    leakyRelu: op(graph.leakyRelu, 'f'),
    less: op(graph.less, 'ff'),
    lessEqual: op(graph.lessEqual, 'ff'),
    log: op(graph.log, 'f'),
    logSoftmax: op(graph.logSoftmax, 'f'),
    logicalAnd: op(graph.logicalAnd, 'bb'),
    logicalNot: op(graph.logicalNot, 'b'),
    logicalOr: op(graph.logicalOr, 'bb'),
    matMul: op(graph.matMul, 'ff'),
    max: op(graph.max, 'f'),
    maximum: op(graph.maximum, 'ff'),
    mean: op(graph.mean, 'f'),
    min: op(graph.min, 'f'),
    minimum: op(graph.minimum, 'ff'),
    mul: op(graph.mul, 'ff'),
    neg: op(graph.neg, 'f'),
    pow: op(graph.pow, 'ff'),
    prod: op(graph.prod, 'f'),
    relu: op(graph.relu, 'f'),
    reshape: op(graph.reshape, 'f', { shape: [4] }),
    rsqrt: op(graph.rsqrt, 'f'),
    scatterAdd: op(graph.scatterAdd, 'vif'),
    scatterSub: op(graph.scatterSub, 'vif'),
    scatterUpdate: op(graph.scatterUpdate, 'vif'),
    select: op(graph.select, 'bff'),
    shapeOf: op(graph.shapeOf, 'f'),
    sigmoid: op(graph.sigmoid, 'f'),
    sigmoidCrossEntropyWithLogits: op(graph.sigmoidCrossEntropyWithLogits, 'ff'),
    sign: op(graph.sign, 'f'),
    slice: op(graph.slice, 'f', { begin: [0, 0], size: [1, 1] }),
    softmax: op(graph.softmax, 'f'),
    softmaxCrossEntropyWithLogits: op(graph.softmaxCrossEntropyWithLogits, 'ff'),
    softplus: op(graph.softplus, 'f'),
    sparseSoftmaxCrossEntropyWithLogits: op(graph.sparseSoftmaxCrossEntropyWithLogits, 'fi'),
    sqrt: op(graph.sqrt, 'f'),
    square: op(graph.square, 'f'),
    squaredDifference: op(graph.squaredDifference, 'ff'),
    sub: op(graph.sub, 'ff'),
    sum: op(graph.sum, 'f'),
    switchOn: op(graph.switchOn, 'fp'),
    tanh: op(graph.tanh, 'f'),
    transpose: op(graph.transpose, 'f', { perm: [1, 0] }),
    zerosLike: op(graph.zerosLike, 'f'),
    floorDiv: op(graph.floorDiv, 'ff'),
    floorMod: op(graph.floorMod, 'ff'),
    merge: op(graph.merge, 'L'),
    pack: op(graph.pack, 'L'),
    range: op(graph.range, 'jjj'),
    sizeOf: op(graph.sizeOf, 'f'),
    placeholder: call(graph.placeholder, argument(g), argument('float32'), argument([2], 'undefined'), nodeOptions),
    variable: call(graph.variable, argument(g), argument('float32'), argument([2]), nodeOptions),
    constant: call(graph.constant, argument(g), argument({ dtype: 'float32', shape: [1], data: Float32Array.of(1) }), nodeOptions),
    cast: call(graph.cast, argument(g), argument(values.f), argument('int32'), nodeOptions),
    split: call(graph.split, argument(g), argument(values.f), argument(2), options('axis', 'name', 'device')),
    dynamicPartition: call(graph.dynamicPartition, argument(g), argument(values.r), argument(values.i), argument(2), nodeOptions),
    dynamicStitch: call(graph.dynamicStitch, argument(g), argument([values.i]), argument([values.r]), nodeOptions),
    randomUniform: call(graph.randomUniform, argument(g), argument([2]), options('dtype', 'seed', 'scale', 'offset', 'name')),
    randomNormal: call(graph.randomNormal, argument(g), argument([2]), options('seed')),
    truncatedNormal: call(graph.truncatedNormal, argument(g), argument([2]), options('seed')),
    dropout: call(graph.dropout, argument(g), argument(values.f), argument(0.5), options('seed', 'name')),
    globalNorm: call(graph.globalNorm, argument(g), argument([values.f])),
    clipByGlobalNorm: call(graph.clipByGlobalNorm, argument(g), argument([values.f]), argument(1, 'number')),
    clipByNorm: call(graph.clipByNorm, argument(g), argument(values.f), argument(1, 'number')),
    ...decays(),
    piecewiseConstant: call(graph.piecewiseConstant, argument(g), argument(values.j), argument([3]), argument([1, 2])),
    getVariable: call(
      graph.getVariable,
      argument(g),
      argument('own', 'string'),
      argument([2]),
      options('dtype', 'initializer', 'trainable', 'device'),
    ),
    getPartitionedVariable: call(
      graph.getPartitionedVariable,
      argument(g),
      argument('parts', 'string'),
      argument([4, 2]),
      argument([device], 'list'),
      options('dtype', 'initializer', 'trainable'),
    ),
    getEmbeddingVariable: call(
      graph.getEmbeddingVariable,
      argument(g),
      argument('keyed', 'string'),
      argument(2),
      options('dtype', 'initializer', 'defaultValueDim', 'filterFreq', 'stepsToLive', 'trainable', 'device'),
    ),
    exportEmbeddings: call(graph.exportEmbeddings, argument(g), argument(keyed)),
    evictEmbeddings: call(graph.evictEmbeddings, argument(g), argument(keyed), argument(graph.placeholder(g, 'int64', [])), nodeOptions),
    embeddingLookup: call(graph.embeddingLookup, argument(g), argument(values.v), argument(values.i), options('partitionStrategy', 'name')),
    embeddingLookupSparse: call(
      graph.embeddingLookupSparse,
      argument(g),
      argument(values.v),
      fields({ ids: values.i, segments: values.i, rows: 2 }, 'weights'),
      options('combiner', 'partitionStrategy', 'name'),
    ),
    globalVariablesInitializer: call(graph.globalVariablesInitializer, argument(g)),
    createGlobalStep: call(graph.createGlobalStep, argument(g)),
    constantInitializer: call(graph.constantInitializer, argument(1, 'number')),
    zerosInitializer: 'takes nothing',
    onesInitializer: 'takes nothing',
    randomUniformInitializer: call(graph.randomUniformInitializer, options('minval', 'maxval', 'seed')),
    randomNormalInitializer: call(graph.randomNormalInitializer, options('mean', 'stddev', 'seed')),
    truncatedNormalInitializer: call(graph.truncatedNormalInitializer, options('mean', 'stddev', 'seed')),
    varianceScalingInitializer: call(graph.varianceScalingInitializer, options('scale', 'mode', 'distribution', 'seed')),
    glorotUniformInitializer: call(graph.glorotUniformInitializer, options('seed')),
    GradientDescentOptimizer: made(graph.GradientDescentOptimizer, argument(0.1, 'number')),
    MomentumOptimizer: made(graph.MomentumOptimizer, argument(0.1, 'number'), argument(0.9, 'number'), options('useNesterov')),
    AdagradOptimizer: made(graph.AdagradOptimizer, argument(0.1, 'number'), options('initialAccumulatorValue')),
    AdamOptimizer: made(graph.AdamOptimizer, argument(0.1, 'number', 'undefined'), options('beta1', 'beta2', 'epsilon')),
    FtrlOptimizer: made(
      graph.FtrlOptimizer,
      argument(0.1, 'number'),
      options('initialAccumulatorValue', 'l1RegularizationStrength', 'l2RegularizationStrength'),
    ),
    localKernels: 'takes nothing',
    noOp: call(graph.noOp, argument(g), nodeOptions),
    controlTrigger: call(graph.controlTrigger, argument(g), nodeOptions),
    call: call(
      graph.call,
      argument(g),
      argument('f', 'string', 'function'),
      argument([values.f]),
      argument([{ dtype: 'float32', shape: [2] }]),
      options('gradient', 'name', 'device'),
    ),
    cond: call(graph.cond, argument(g), argument(values.p), argument([values.f]), argument({ then: same, else: same }), options('name')),
    whileLoop: call(
      graph.whileLoop,
      argument(g),
      argument([values.f]),
      argument({ cond: () => values.p, body: same }),
      options('name', 'parallelIterations'),
    ),
    gradients: call(graph.gradients, argument(g), argument(values.s), argument([values.s]), options('name', 'colocate', 'gradYs')),
    joined: 'takes what gradients gives',
    whole: 'takes what gradients gives',
    elementsOf: call(graph.elementsOf, argument({ dtype: 'float32', shape: [1], data: Float32Array.of(1) })),
    exportNodes: call(graph.exportNodes, argument(finished)),
    importNodes: call(graph.importNodes, argument(graph.exportNodes(finished)), argument(graph.operations)),
    importGraphDef: call(graph.importGraphDef, argument(Uint8Array.of(0x0a))),
    importModelJson: 'takes a path: src/tensorflow/import.test.ts',
    importSavedModel: 'takes a path: src/tensorflow/saved-model.test.ts',
    encodeGraph: call(graph.encodeGraph, argument(finished)),
    decodeGraph: call(graph.decodeGraph, argument(graph.encodeGraph(finished))),
    drawGraph: call(graph.drawGraph, argument({ partitions: [] }), options('boxesMax', 'title')),
    startGraphServer: call(graph.startGraphServer, options('environment', 'kernels', 'functions', 'recvSome')),
    GraphBuilder: 'takes nothing',
    GraphServer: 'is made by startGraphServer',
    IndexedSlices: 'is made by gradients',
    Node: 'is made by operations',
    Output: 'is made by operations',
    Saver: call(
      (...given: ConstructorParameters<typeof graph.Saver>) => new graph.Saver(...given),
      argument(g),
      argument([values.v], 'undefined'),
    ),
    Session: call(
      (...given: ConstructorParameters<typeof graph.Session>) => new graph.Session(...given),
      argument(finished),
      fields({ devices: [device], kernels: {} }, 'defaultDevice', 'fuse', 'timeoutMs'),
    ),
  } satisfies Exports<typeof graph> & { readonly GraphServer: string };

  it('is walked over whole', () => hasAll(graph, table));

  it.each(Object.entries(table).flatMap(([name, each]) => (typeof each === 'string' ? [] : [{ name, each }])))('$name', ({ name, each }) =>
    walk('graph', { [name]: each }),
  );
});
