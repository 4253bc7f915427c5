/** Operations of a partitioned graph, in place of edges between devices, of feeds and of fetches. FuseRecv has the attributes
 *  of its document; Send, Recv, _Arg and _Retval are TensorFlow's. Shapes ride along, so that checks go on behind a receive. */
import type { InferContext, OpDefinition, OutputSpec } from '../structure/definition.ts';
import type { GraphDType } from '../structure/graph-dtype.ts';
import type { Shape } from '../structure/shape.ts';

const rendezvous = {
  tensor_name: { kind: 'string' },
  send_device: { kind: 'string' },
  send_device_incarnation: { kind: 'int64' },
  recv_device: { kind: 'string' },
  client_terminated: { kind: 'bool', default: false },
} as const satisfies OpDefinition['attributes'];

export const sendDefinition: OpDefinition = {
  name: 'Send',
  inputs: [{ name: 'tensor', dtype: 'T' }],
  attributes: { T: { kind: 'type' }, ...rendezvous },
  infer: () => [],
  control: 'send',
  isStateful: true,
};

export const recvDefinition: OpDefinition = {
  name: 'Recv',
  inputs: [],
  attributes: { tensor_type: { kind: 'type' }, shape: { kind: 'shape', default: 'unknown' }, ...rendezvous },
  infer: ({ dtype, attributes }) => [{ dtype: dtype('tensor_type'), shape: attributes.shape as Shape }],
  control: 'recv',
  isStateful: true,
};

export const fuseRecvDefinition: OpDefinition = {
  name: 'FuseRecv',
  inputs: [],
  attributes: {
    tensor_type: { kind: 'list(type)' },
    tensor_name: { kind: 'list(string)' },
    send_device: { kind: 'list(string)' },
    send_device_incarnation: { kind: 'list(int64)' },
    recv_device: { kind: 'list(string)' },
    client_terminated: { kind: 'bool', default: false },
    shapes: { kind: 'list(shape)' },
  },
  infer: slots,
  control: 'fuse-recv',
  isStateful: true,
};

export const argumentDefinition: OpDefinition = {
  name: '_Arg',
  inputs: [],
  attributes: { T: { kind: 'type' }, shape: { kind: 'shape' }, index: { kind: 'int', least: 0 } },
  infer: ({ dtype, attributes }) => [{ dtype: dtype('T'), shape: attributes.shape as Shape }],
  control: 'argument',
};

export const returnDefinition: OpDefinition = {
  name: '_Retval',
  inputs: [{ name: 'input', dtype: 'T' }],
  attributes: { T: { kind: 'type' }, index: { kind: 'int', least: 0 } },
  infer: () => [],
  control: 'return',
};

function slots({ attributes, fail }: InferContext): readonly OutputSpec[] {
  const dtypes = attributes.tensor_type as readonly GraphDType[];
  const shapes = attributes.shapes as readonly Shape[];
  for (const key of ['tensor_name', 'send_device', 'send_device_incarnation', 'recv_device', 'shapes']) {
    const { length } = attributes[key] as readonly unknown[];
    if (length !== dtypes.length) fail(`${key} has ${length} entries for ${dtypes.length} slots`);
  }
  if (dtypes.length === 0) fail('receives nothing');
  // One request to one task, for one.
  for (const key of ['send_device', 'send_device_incarnation', 'recv_device']) {
    const [first, ...others] = attributes[key] as readonly (string | bigint)[];
    const other = others.find((each) => each !== first);
    if (other !== undefined) fail(`all slots have one ${key}, not ${first} and ${other}`);
  }
  return dtypes.map((dtype, slot) => ({ dtype, shape: shapes[slot] }));
}
