/** Errors of a group that ends because a rank has left, failed or was lost: each names the rank to blame, as far as that is known. */
import { ShoalError, type ErrorData } from '../../../base/errors.ts';
import { describeCall, type CollectiveCall } from '../../../call/contract.ts';
import type { PeerLink } from '../links/peer-link.ts';

export interface Loss {
  /** Name of the group. */
  readonly group: string;
  /** This rank, in the world. */
  readonly rank: number;
  /** The oldest call that has not ended; undefined: there is none. */
  readonly during: { readonly call: CollectiveCall; readonly sequence: number } | undefined;
  /** The error with which the connection closed; undefined: it closed in an orderly way. */
  readonly error: ShoalError | undefined;
}

/** The error of a group that has lost a member. */
export function lossOf({ rank: lost, failure }: PeerLink, { group, rank, during, error }: Loss): ShoalError {
  const when = during ? `during ${describeCall(during.call, during.sequence)}` : 'between collectives';
  // The member failed because of another rank, in a group that this one may not be in; or because of this one, which then is its own
  // reason.
  const because = failure?.peer === undefined ? undefined : failure;
  const why = because ? `it had failed: ${because.message}` : (error?.message ?? "it closed its connection; see that rank's own output");
  return new ShoalError('peer-lost', `rank ${lost} was lost ${when} of group '${group}': ${why}`, {
    peer: because?.peer ?? lost,
    rank,
    operation: during?.call.kind,
    sequence: during?.sequence,
    cause: error,
  });
}

/** The reason for which a world rank has ended the group. If that rank lacks something, it is the one to blame. */
export function reasonSaidBy(rank: number, data: ErrorData): ShoalError {
  return ShoalError.fromData({ ...data, peer: data.resource === undefined ? data.peer : (data.peer ?? rank) });
}

/** The error, with the trouble that a rank has told before it left or did not come. */
export function withTrouble(links: readonly (PeerLink | undefined)[], error: ShoalError): ShoalError {
  const trouble = links.find((link) => link?.trouble)?.trouble;
  return trouble ? ShoalError.fromData({ ...trouble.toData(), message: `${trouble.message}; then ${error.message}` }) : error;
}
