/** A check of the conformance suite of stores (conformance.ts), and what its checks have in common. */
import assert from 'node:assert/strict';
import type { ErrorCode } from '../../base/errors.ts';
import type { KVStore, KVStoreType } from '../calls/types.ts';

export interface KVCheck {
  readonly name: string;
  readonly types: readonly KVStoreType[];
  readonly fresh: boolean;
  /** @param folder empty, and the same for all workers */
  run(kv: KVStore, folder: string): Promise<void>;
}

export const allTypes: readonly KVStoreType[] = ['local', 'collective', 'dist_sync', 'dist_async'];
/** Those in which a version holds one push of every worker. */
export const syncTypes: readonly KVStoreType[] = ['local', 'collective', 'dist_sync'];

/** Thrown at the call or rejected: both are refusals. */
export async function refuses(code: ErrorCode, message: RegExp, call: () => PromiseLike<unknown> | void): Promise<void> {
  await assert.rejects(
    async () => {
      await call();
    },
    (error: { code?: unknown; message?: unknown }) => {
      assert.equal(error.code, code, String(error.message));
      assert.match(String(error.message), message);
      return true;
    },
  );
}
