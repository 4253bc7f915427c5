/** Arguments of public functions that are objects of this layer. @throws ShoalError `usage`, each. */
import { ShoalError } from '../../base/errors.ts';
import { describeValue } from '../../base/schema.ts';
import { GraphBuilder } from './builder.ts';
import { Graph } from './graph.ts';
import { Output } from './graph-node.ts';

export function checkedBuilder(call: string, given: GraphBuilder): GraphBuilder {
  if (given instanceof GraphBuilder) return given;
  throw new ShoalError('usage', `${call}: the first argument is the GraphBuilder that gets the node, not ${describeValue(given)}`);
}

export function checkedGraph(call: string, given: Graph): Graph {
  if (given instanceof Graph) return given;
  throw new ShoalError('usage', `${call} takes a finished graph, not ${describeValue(given)}`);
}

export function checkOutputs(call: string, given: readonly Output[]): void {
  if (Array.isArray(given) && given.every((each) => each instanceof Output)) return;
  throw new ShoalError('usage', `${call} takes a list of outputs, not ${describeValue(given)}`);
}
