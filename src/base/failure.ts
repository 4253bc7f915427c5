/** The error of something with a name that programs pushed or posted: what it threw, with all that is known of it. */
import { isShoalError, messageOf, ShoalError } from './errors.ts';

/** @param kind for the message: `operation`, `task`. A `ShoalError` keeps its code and its fields. */
export function failureOf(kind: string, name: string, thrown: unknown): ShoalError {
  const { code, rank, peer, sequence, bytes, timeoutMs, resource } = isShoalError(thrown) ? thrown : new ShoalError('system', '');
  const fields = { rank, peer, sequence, bytes, timeoutMs, resource, operation: name, cause: thrown };
  return new ShoalError(code, `${kind} '${name}' failed: ${messageOf(thrown)}`, fields);
}
