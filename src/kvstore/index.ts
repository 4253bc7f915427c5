/** `shoal/kvstore`: the parameter server, in the vocabulary of MXNet's KVStore.
 *  @module */
export { create, createShared, type CreateOptions } from './stores/create.ts';
export { MessageType, Role } from './protocol/singa.ts';
export { ScheduledKVStore } from './scheduled/scheduled-kvstore.ts';
export type { ScheduledKVStoreOptions } from './scheduled/scheduled-backend.ts';
export type { CompressionSpec } from './compression/codec.ts';
export type { OptimizerSpec } from './optimizers/optimizer.ts';
export type { ClientTicket } from './client/commands.ts';
export type {
  Blob,
  Key,
  KVStore,
  KVStoreType,
  KVWork,
  ParameterInfo,
  RowSparse,
  RowSparsePullOptions,
  TransferOptions,
  Updater,
  Value,
  Values,
} from './values/types.ts';
