/** State in a folder that worker 0 names: a server's part of `saveState` and `loadState`. Nothing is heard while files are read. Of
 *  several server groups, group 0 reads and writes; groups.ts makes that the state of all. */
import { ShoalError } from '../../base/errors.ts';
import type { Snapshot, SnapshotStore } from '../../checkpoint/snapshot.ts';
import { fits, reslice } from './reslice.ts';
import type { ServerGroups } from './groups.ts';
import type { ServerSession } from './state/client-session.ts';
import { replaceValues, takeSnapshot } from './snapshot.ts';
import type { ServerState } from './state/server-state.ts';
import { packError, packNotice, type ControlFields } from '../protocol/wire-control.ts';

/** A state that all servers saved together. */
interface Save {
  readonly folder: string;
  readonly save: string;
}

export class ServerFiles {
  readonly #state: ServerState;
  readonly #groups: ServerGroups;
  /** This server's part of a save, until it is loaded. */
  #prepared: (Save & { readonly batches: number; readonly part: Snapshot }) | undefined;
  /** One save after the other: two at a time would write one file. */
  #written: Promise<void> = Promise.resolve();

  constructor(state: ServerState, groups: ServerGroups) {
    this.#state = state;
    this.#groups = groups;
  }

  save(session: ServerSession, request: number, { folder, save }: Save): void {
    // Its primary writes the files.
    if (this.#state.actions.isSilent()) return;
    const { storeAt, server } = this.#state.options;
    const store = storeAt(folder, server);
    this.#groups.gather((error) => {
      const snapshot = takeSnapshot(this.#state, { exchanges: false });
      void this.#answer(session, request, async () => {
        if (error !== undefined) throw error;
        await this.#write(store, snapshot, save);
        return {};
      });
    });
  }

  /** The saves that server 0 has a part of, the latest first. */
  list(session: ServerSession, request: number, folder: string): void {
    const store = this.#state.options.storeAt(folder, 0);
    void this.#answer(session, request, async () => ({ saves: await store.saves() }));
  }

  /** Reads this server's part and compares the parameters; changes nothing. */
  prepare(session: ServerSession, request: number, save: Save): void {
    this.#state.actions.pause(
      this.#answer(session, request, async () => {
        this.#prepared = undefined;
        this.#prepared = { ...save, batches: this.#state.directory.batches, part: await this.#read(save) };
        return {};
      }),
    );
  }

  /** Done when all groups have it. */
  load(session: ServerSession, request: number, save: Save): void {
    // Asked again over another connection, which gets the answer.
    if (this.#groups.assigning === request) return;
    this.#state.actions.pause(
      this.#replace(request, save).then(
        () => this.#groups.assign(request, (error) => void this.#loaded(session, request, error)),
        (thrown: unknown) => void this.#loaded(session, request, ShoalError.from(thrown)),
      ),
    );
  }

  #write(store: SnapshotStore, snapshot: Snapshot, save: string): Promise<void> {
    const written = this.#writeAfter(this.#written, { store, snapshot, save });
    this.#written = written.catch(() => undefined);
    return written;
  }

  async #writeAfter(before: Promise<void>, what: { store: SnapshotStore; snapshot: Snapshot; save: string }): Promise<void> {
    await before;
    const { store, snapshot, save } = what;
    // Asked again: twice the same would push out the save before.
    if (!(await store.saves()).includes(save)) await store.save({ ...snapshot, metadata: { ...snapshot.metadata, save } });
  }

  async #replace(request: number, save: Save): Promise<void> {
    const prepared = this.#prepared;
    this.#prepared = undefined;
    const same = prepared?.folder === save.folder && prepared.save === save.save && prepared.batches === this.#state.directory.batches;
    // A server that was started in between has prepared nothing.
    const part = same ? prepared.part : await this.#read(save);
    const { optimizerVersion, sync } = this.#state;
    replaceValues(this.#state, part);
    // Done once more, because other groups may lack it: what was counted then is not counted again.
    if (sync.generation === request) this.#state.optimizerVersion = optimizerVersion;
  }

  #loaded(session: ServerSession, request: number, error: ShoalError | undefined): Promise<void> {
    return this.#answer(session, request, async () => {
      if (error !== undefined) throw error;
      session.lastConfiguration = request;
      // Earlier pushes must not be repeated after it.
      await this.#state.actions.durable();
      return packNotice(this.#state.optimizerNotice);
    });
  }

  async #read({ folder, save }: Save): Promise<Snapshot> {
    const { storeAt, server } = this.#state.options;
    const own = await storeAt(folder, server).load(save);
    return own !== undefined && fits(this.#state, own) ? own : reslice(this.#state, { folder, save });
  }

  async #answer(session: ServerSession, request: number, fields: () => Promise<ControlFields>): Promise<void> {
    try {
      this.#state.actions.reply(session, request, await fields());
    } catch (error) {
      this.#state.actions.reply(session, request, { error: packError(ShoalError.from(error)) });
    }
  }
}
