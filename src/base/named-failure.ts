/** The error of something with a name that programs pushed or posted: the error that it threw, with all its facts. */
import { isShoalError, messageOf, ShoalError } from './errors.ts';

/** Errors that have been named here already. */
const named = new WeakSet<ShoalError>();

/** @param kind for the message: `operation`, `task`. A `ShoalError` keeps its code and its fields. An error that was named at one
 *          level is passed on unchanged by those above. */
export function namedFailure(kind: string, name: string, thrown: unknown): ShoalError {
  if (isShoalError(thrown) && named.has(thrown)) return thrown;
  const { code, rank, peer, sequence, bytes, timeoutMs, resource } = isShoalError(thrown) ? thrown : new ShoalError('system', '');
  const fields = { rank, peer, sequence, bytes, timeoutMs, resource, operation: name, cause: thrown };
  const failure = new ShoalError(code, `${kind} '${name}' failed: ${messageOf(thrown)}`, fields);
  named.add(failure);
  return failure;
}
