/** State that all servers save and load together, in two steps: if one cannot load it, none does.
 *
 *      list  ▶ server 0     saves in the folder, the latest first
 *      prepare ▶ all        the save is whole, and of the same parameters       else the one before it
 *      load  ▶ all          values change */
import { ShoalError } from '../../base/errors.ts';
import { answered } from './client-request.ts';
import type { ClientOperation } from './client-operation.ts';
import type { ClientContext } from './client-transfers.ts';
import { Fields } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

export class ClientStates {
  readonly #context: ClientContext;
  #saves = 0;

  constructor(context: ClientContext) {
    this.#context = context;
  }

  save(operation: ClientOperation, folder: string): void {
    const save = `${this.#context.options.clock.wallNow()}-${++this.#saves}`;
    operation.ask(this.#context.connections, { type: KVMessage.saveState, fields: { folder, save } });
  }

  load(operation: ClientOperation, folder: string): void {
    operation.expect();
    operation.ask(this.#context.connections.slice(0, 1), { type: KVMessage.listState, fields: { folder } }, (error, answer) => {
      if (error !== undefined) return operation.arrive(error);
      return this.#loadFirst(operation, folder, answered(answer, Fields.listed).saves, undefined);
    });
  }

  /** The first of some saves that all servers can load. */
  #loadFirst(operation: ClientOperation, folder: string, [save, ...older]: readonly string[], failure: ShoalError | undefined): void {
    if (save === undefined) {
      const none = `there is no saved state in ${folder}; load from where saveState wrote, which every server must see`;
      return operation.arrive(failure ?? new ShoalError('usage', none));
    }
    const fields = { folder, save };
    return operation.ask(this.#context.connections, { type: KVMessage.prepareState, fields }, (error) => {
      // Damaged, or not of all servers.
      if (error?.code === 'protocol' || error?.code === 'usage') return this.#loadFirst(operation, folder, older, failure ?? error);
      if (error !== undefined) return operation.arrive(error);
      const load = { type: KVMessage.loadState, fields, repeats: true };
      return operation.ask(this.#context.connections, load, (failed) => operation.arrive(failed));
    });
  }
}
