/** The service of the gRPC baseline, written by hand: payloads are raw bytes, the key is in the metadata, so that nothing is
 *  serialised or copied on the way. */
import type { ServiceDefinition, UntypedHandleCall } from '@grpc/grpc-js';

const raw = (bytes: Buffer): Buffer => bytes;
const method = (name: string) => ({
  path: `/Parameters/${name}`,
  requestStream: false,
  responseStream: false,
  requestSerialize: raw,
  requestDeserialize: raw,
  responseSerialize: raw,
  responseDeserialize: raw,
});

/** PushPull: a gradient in, the sum over all workers out. Barrier: answered when all workers have called. Leave: the server
 *  ends when all workers have. */
export const service: ServiceDefinition<Record<'PushPull' | 'Barrier' | 'Leave', UntypedHandleCall>> = {
  PushPull: method('PushPull'),
  Barrier: method('Barrier'),
  Leave: method('Leave'),
};

/** Messages of any size, both ways. */
export const channelOptions = { 'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1 };
