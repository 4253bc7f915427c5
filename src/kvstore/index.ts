/** `shoal/kvstore`: the parameter server, in the vocabulary of MXNet's KVStore.
 *  @module */
export { create, createShared, type CreateOptions } from './stores/create.ts';
export { MessageType, Role } from '../ps/protocol/singa.ts';
export { ScheduledKVStore } from './scheduled/scheduled-kvstore.ts';
export type { ScheduledKVStoreOptions } from './scheduled/scheduled-backend.ts';
export type { CompressionSpec } from '../ps/compression/codec.ts';
export type { OptimizerSpec } from '../ps/optimizers/optimizer.ts';
export type { ParameterInfo } from '../ps/client/client-options.ts';
export type { ClientTicket } from '../ps/client/commands.ts';
export type { Blob } from '../ps/values/blob-box.ts';
export type * from './calls/types.ts';
