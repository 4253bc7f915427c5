/** `shoal/graph`: dataflow graphs over several devices, in the vocabulary of TensorFlow 1.
 *  @module */
export * from './graph/index.ts';
export { importGraphDef } from './tensorflow/import-graph-def.ts';
export { importModelJson } from './tensorflow/model-json.ts';
export { importSavedModel, type SavedModel, type SavedModelOptions, type Signature } from './tensorflow/saved-model.ts';
export { drawGraph, type DrawGraphOptions } from './tools/draw/draw-graph.ts';
