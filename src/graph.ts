/** `shoal/graph`: dataflow graphs over several devices, in the vocabulary of TensorFlow 1.
 *  @module */
export * from './graph/index.ts';
export { drawGraph, type DrawGraphOptions } from './tools/draw/draw-graph.ts';
