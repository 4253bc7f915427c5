/** A primary and its standby. The standby is the same state machine, fed with the same messages in the same order, and
 *  silent. The primary forwards every message first, and acts on it after the standby:
 *
 *    client ──▶ primary ──forward 7──▶ standby          nothing the primary ever said can be unknown to the standby,
 *             primary ◀─forwarded 7─ standby          and gradients in the client's memory are read by the standby
 *    client ◀── primary                                 before the primary writes new values over them
 *
 *  A later standby gets the state first, then the messages that are not settled yet: a *stream*, named by the term of its primary
 *  and the number at which it begins. A standby follows the latest stream and drops all earlier ones. */
import { dtypes, dtypeInfo } from '../../memory/dtype.ts';
import { Msg } from '../../messaging/msg.ts';
import { cutsOf } from './state/cuts.ts';
import type { Address } from '../../messaging/address.ts';
import type { Snapshot, SnapshotTensor } from '../../checkpoint/snapshot.ts';
import { encodeControl, Fields, readControl } from '../protocol/wire-control.ts';
import { KVMessage, makeMessage, malformed } from '../protocol/wire.ts';

export interface Stream {
  readonly term: number;
  readonly number: number;
}

/** The standby's verdict on a message: that the whole state is there; of a forwarded one, whether it could map the memory
 *  announced in it; or that it cannot be a standby, because it has not got the state. */
export const Verdict = { attached: 0, unattached: 1, unfit: 2, informed: 3, count: 4 } as const;

export function readVerdict({ targetVersion }: Msg): { term: number; verdict: number } {
  return { term: Math.floor(targetVersion / Verdict.count), verdict: targetVersion % Verdict.count };
}

interface StreamEnvelope {
  readonly source: Address;
  readonly standby: Address;
  readonly stream: Stream;
}

/** Bytes of one message of a state, in which a tensor counts at least so much. */
const stateBytesMax = 64 * 2 ** 20;
const tensorBytesLeast = stateBytesMax / 4096;

/** A message inside another: frame 0 says what it was. */
export function wrap(msg: Msg, { source, standby, stream }: StreamEnvelope): Msg {
  const fields = {
    source: String(msg.source),
    destination: String(msg.destination),
    type: msg.type,
    value: msg.targetValue,
    version: msg.targetVersion,
  };
  const frames = [encodeControl(fields), ...msg.frames];
  return makeMessage({ source, destination: standby, type: KVMessage.forward, request: stream.number, epoch: stream.term }, frames);
}

/** @throws ShoalError `protocol`. */
export function unwrap(forward: Msg): Msg {
  const { source, destination, type, value, version } = readControl(forward.frames[0], Fields.forward);
  return Msg.received({
    source: BigInt(source),
    destination: BigInt(destination),
    type,
    targetValue: value,
    targetVersion: version,
    frames: forward.frames.slice(1),
    pointers: [],
  });
}

/** A state as messages; the last one says so. `fields` go with the last. */
export function stateMessages(snapshot: Snapshot, { source, standby, stream }: StreamEnvelope, fields: Record<string, unknown>): Msg[] {
  const tensors = [...snapshot.tensors];
  const bytesOf = (k: number): number => Math.max(tensors[k][1].data.byteLength, tensorBytesLeast);
  return [...cutsOf(0, tensors.length, stateBytesMax, bytesOf)].map(({ first, to, last }) => {
    const part = tensors.slice(first, to);
    const table = part.map(([name, { dtype, shape }]) => [name, dtypeInfo(dtype).code, shape]);
    const head = encodeControl({ first, table, ...(last ? { metadata: snapshot.metadata, ...fields } : {}) });
    const frames = [head, ...part.map(([, { data }]) => data)];
    const envelope = { source, destination: standby, type: KVMessage.state, request: stream.number, epoch: stream.term };
    return makeMessage(envelope, frames);
  });
}

/** The standby's side: puts a state together. */
export class StateReceiver {
  readonly #tensors = new Map<string, SnapshotTensor>();

  /** @returns the whole, and what went with it, after the last message. @throws ShoalError `protocol`. */
  receive(msg: Msg): { snapshot: Snapshot; terms: readonly unknown[]; regions: readonly unknown[] } | undefined {
    const { first, table, metadata, terms = [], regions = [] } = readControl(msg.frames[0], Fields.statePart);
    if (first !== this.#tensors.size) throw malformed('a state with gaps');
    for (const [k, entry] of table.entries()) {
      const [name, code, shape] = entry as [string, number, number[]];
      const data = msg.frames[k + 1];
      if (dtypes[code] === undefined || data === undefined) throw malformed('a state without values');
      this.#tensors.set(name, { dtype: dtypes[code].name, shape, data: Uint8Array.from(data) });
    }
    if (metadata === undefined) return undefined;
    return { snapshot: { tensors: this.#tensors, metadata: metadata as Record<string, string> }, terms, regions };
  }
}
