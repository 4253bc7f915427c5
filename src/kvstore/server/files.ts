/** State in a folder that worker 0 names: a server's part of `saveState` and `loadState`. Nothing is heard while files are read. */
import { ShoalError } from '../../base/errors.ts';
import type { Snapshot, SnapshotStore } from '../checkpoint/snapshot.ts';
import { fits, reslice } from './reslice.ts';
import type { ServerSession } from './state/client-session.ts';
import { replaceValues, takeSnapshot } from './snapshot.ts';
import type { ServerState } from './state/state.ts';
import { packError, packNotice, type ControlFields } from '../protocol/wire-control.ts';

export interface FilesCallbacks {
  readonly reply: (session: ServerSession, request: number, fields: ControlFields) => void;
  /** Nothing else is heard until the promise is settled. */
  readonly pause: (until: Promise<void>) => void;
  /** A standby: what it answers reaches nobody. */
  readonly isSilent: () => boolean;
}

/** What all servers saved together. */
interface Save {
  readonly folder: string;
  readonly save: string;
}

export class ServerFiles {
  readonly #state: ServerState;
  readonly #callbacks: FilesCallbacks;
  /** This server's part of a save, until it is loaded. */
  #prepared: (Save & { readonly batches: number; readonly part: Snapshot }) | undefined;

  constructor(state: ServerState, callbacks: FilesCallbacks) {
    this.#state = state;
    this.#callbacks = callbacks;
  }

  /** @throws ShoalError `unsupported`. */
  save(session: ServerSession, request: number, { folder, save }: Save): void {
    // Its primary writes the files.
    if (this.#callbacks.isSilent()) return;
    const { tensors, metadata } = takeSnapshot(this.#state);
    const saving = this.#storesAt(folder)(this.#state.options.server).save({ tensors, metadata: { ...metadata, save } });
    void this.#answer(session, request, () => saving.then(() => ({})));
  }

  /** The saves that server 0 has a part of, the latest first. */
  list(session: ServerSession, request: number, folder: string): void {
    const store = this.#storesAt(folder)(0);
    void this.#answer(session, request, async () => ({ saves: await store.saves() }));
  }

  /** Reads this server's part and compares the parameters; changes nothing. */
  prepare(session: ServerSession, request: number, save: Save): void {
    this.#callbacks.pause(
      this.#answer(session, request, async () => {
        this.#prepared = undefined;
        this.#prepared = { ...save, batches: this.#state.directory.batches, part: await this.#read(save) };
        return {};
      }),
    );
  }

  load(session: ServerSession, request: number, save: Save): void {
    this.#callbacks.pause(
      this.#answer(session, request, async () => {
        const prepared = this.#prepared;
        this.#prepared = undefined;
        const same = prepared?.folder === save.folder && prepared.save === save.save && prepared.batches === this.#state.directory.batches;
        // A server that was started in between has prepared nothing.
        replaceValues(this.#state, same ? prepared.part : await this.#read(save));
        session.lastConfiguration = request;
        return packNotice(this.#state.optimizerNotice);
      }),
    );
  }

  async #read({ folder, save }: Save): Promise<Snapshot> {
    const stores = this.#storesAt(folder);
    const own = await stores(this.#state.options.server).load(save);
    return own !== undefined && fits(this.#state, own) ? own : reslice(this.#state, stores, { folder, save });
  }

  async #answer(session: ServerSession, request: number, fields: () => Promise<ControlFields>): Promise<void> {
    try {
      this.#callbacks.reply(session, request, await fields());
    } catch (error) {
      this.#callbacks.reply(session, request, { error: packError(ShoalError.from(error)) });
    }
  }

  /** Where each server of the group saves in a folder. */
  #storesAt(folder: string): (server: number) => SnapshotStore {
    const { storeAt, topology } = this.#state.options;
    if (storeAt === undefined) throw new ShoalError('unsupported', 'this server has no place for files');
    if (topology.serverGroups > 1) {
      throw new ShoalError('unsupported', 'state of several server groups is never one state; save and load with one server group');
    }
    return (server) => storeAt(folder, server);
  }
}
