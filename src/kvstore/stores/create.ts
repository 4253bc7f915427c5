/** Makes a store by its type. */
import { MessagePort } from 'node:worker_threads';
import { ShoalError } from '../../base/errors.ts';
import { anyNumber, anyObject, checkFields, checkOptions, noOptions, optionTable } from '../../base/schema.ts';
import type { Environment } from '../../base/settings/settings.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import type { Backend, ServerStore } from '../calls/operation.ts';
import { connect, join, openCollective, openLocal } from './connect.ts';
import type { ClientTicket } from '../../ps/client/commands.ts';
import type { KVStore, KVStoreType } from '../calls/types.ts';

/** The sources of a store's place in the job. */
export interface CreateOptions {
  /** dist types: a worker of a process that has a store already, in another thread; see `createShared`. */
  readonly ticket?: ClientTicket;
  /** Instead of `process.env`. */
  readonly environment?: Environment;
}

const createOptions = optionTable<CreateOptions>({ ticket: anyObject, environment: anyObject });
const createSharedOptions = optionTable<Parameters<typeof createShared>[1]>({ workers: anyNumber, environment: anyObject });

/** `create('dist_sync')` and `create('dist_async')` find their place and their servers in the environment, which
 *  `shoal run --workers <n> --servers <m>` sets; resolves when the job's store has been reached. `create('collective')` joins
 *  the process group of the environment, `create('local')` needs nothing.
 *  @throws ShoalError `config` without servers, `mismatch` when workers create different types, `timeout`, `auth`. */
export async function create(type: KVStoreType = 'local', options: CreateOptions = noOptions): Promise<KVStore> {
  checkOptions('create', options, createOptions);
  return new CheckedStore(await open(type, options));
}

async function open(type: KVStoreType, { environment = process.env, ticket }: CreateOptions): Promise<Backend | ServerStore> {
  if (ticket !== undefined) checkTicket(type, ticket);
  switch (type) {
    case 'local':
      return openLocal(environment);
    case 'collective':
      return openCollective(environment);
    case 'dist_sync':
    case 'dist_async':
      if (ticket !== undefined) return join(type, ticket, environment);
      return (await connect(type, environment, 1)).end;
    default:
      throw new ShoalError('usage', `there is no store '${String(type)}'; use local, collective, dist_sync or dist_async`);
  }
}

/** Several workers in one process: the store of this thread, and a ticket for each other thread, which calls
 *  `create(type, { ticket })`. Tickets are passed with `workerData` and their `port` in the transfer list. Gradients of the
 *  process are summed before they leave it. `workers` is the number of workers in this and in every other process. */
export async function createShared(
  type: 'dist_sync' | 'dist_async',
  options: { readonly workers: number; readonly environment?: Environment },
): Promise<{
  /** The store of the thread that called. */
  readonly store: KVStore;
  /** `workers − 1` tickets, one for each other thread. */
  readonly tickets: readonly ClientTicket[];
}> {
  if (type !== 'dist_sync' && type !== 'dist_async')
    throw new ShoalError('usage', `createShared: there is no shared store '${String(type)}'; use dist_sync or dist_async`);
  checkFields('createShared', options, createSharedOptions);
  const { workers, environment = process.env } = options;
  if (!Number.isSafeInteger(workers) || workers < 1) throw new ShoalError('usage', `${workers} workers per process; at least 1 is needed`);
  const { end, tickets } = await connect(type, environment, workers);
  return { store: new CheckedStore(end), tickets };
}

function checkTicket(type: KVStoreType, { port, events, local }: ClientTicket): void {
  if (type !== 'dist_sync' && type !== 'dist_async')
    throw new ShoalError('usage', `a store '${type}' takes no ticket; tickets are of dist_sync and dist_async`);
  const whole = port instanceof MessagePort && events instanceof SharedArrayBuffer && Number.isSafeInteger(local);
  if (!whole) throw new ShoalError('usage', 'the ticket is not one of createShared; pass it whole, with its port in the transfer list');
}
