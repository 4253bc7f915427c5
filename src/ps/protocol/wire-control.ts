/** Frames of rare messages: JSON objects. The shapes here are those that a receiver takes; further fields are ignored. */
import { ShoalError, type ErrorCode } from '../../base/errors.ts';
import {
  anyList,
  anything,
  anyText,
  count,
  flag,
  isPlainObject,
  list,
  object,
  optional,
  parse,
  that,
  type Shape,
  type ValueOf,
} from '../../base/schema.ts';
import type { OptimizerSpec } from '../optimizers/optimizer.ts';
import { malformed, type OptimizerNotice } from './wire.ts';

/** Directories of parameters are the largest. */
const controlBytesMax = 256 * 2 ** 20;

export type ControlFields = Readonly<Record<string, unknown>>;

const packedError = object({ code: anyText, message: anyText });
/** Its options are checked by the optimisers. */
export const packedSpec: Shape<OptimizerSpec> = that('an object', isPlainObject);
/** The fields of `packNotice`. */
const notice = { optimizer: optional(count), refuses: optional(flag) };

/** The reason of a wait, for people, and the workers for which it waits. */
export type WorkerWait = ValueOf<typeof Fields.inquired>;

/** Shapes by message, or by the question of an answer. */
export const Fields = {
  hello: object({ group: count, first: count, workers: count, barrier: count, left: count, last: count, joins: optional(flag) }),
  welcome: object({ term: count, lineage: count, committed: count, durable: count, log: flag, ...notice }),
  announce: object({ regions: list(anyList) }),
  detach: object({ regions: list(count) }),
  declare: object({ batch: anything }),
  lookup: object({ known: count }),
  setOptimizer: object({ spec: packedSpec, keeps: optional(flag) }),
  enter: object({ batches: count, rounds: optional(list(count)), barrier: optional(count) }),
  entered: object({ settled: list(count), barrier: count }),
  state: object({ folder: anyText, save: anyText }),
  listState: object({ folder: anyText }),
  inquire: object({ request: count }),
  barrier: object({ barrier: count }),
  leave: object({ workers: count, reason: optional(packedError) }),
  done: object({ error: optional(packedError), ...notice }),
  announced: object({ attached: list(flag) }),
  lookedUp: object({ committed: count, batches: optional(anyList) }),
  listed: object({ saves: list(anyText) }),
  inquired: object({ text: anyText, workers: optional(list(count)) }),
  lost: object({
    ...{ client: anyText, error: packedError },
    ...{ group: optional(count), first: optional(count), workers: optional(count), returns: optional(flag) },
  }),
  follow: object({ batches: count, optimizer: count, again: flag }),
  followedOptimizer: object({ optimizer: optional(count), spec: optional(packedSpec) }),
  followedBatch: object({ batch: count, entries: anything, first: count, to: count, last: flag }),
  gather: object({ number: count, incarnation: count }),
  gathered: object({ number: count, incarnation: count, counts: list(count) }),
  assign: object({
    ...{ generation: count, first: count, to: count, last: flag, versions: list(count), steps: list(count) },
    ...{ optimizer: count, spec: optional(packedSpec) },
  }),
  assigned: object({ generation: count, error: optional(packedError) }),
  forward: object({ source: anyText, destination: anyText, type: count, value: count, version: count }),
  statePart: object({ first: count, table: anyList, metadata: anything, terms: optional(anyList), regions: optional(anyList) }),
};

export function encodeControl(fields: ControlFields): Uint8Array {
  return Buffer.from(JSON.stringify(fields), 'utf8');
}

/** The object in a frame. @throws ShoalError `protocol` when it is not of that shape. */
export function readControl<T>(frame: Uint8Array | undefined, shape: Shape<T>): T {
  if (frame === undefined || frame.byteLength > controlBytesMax) throw malformed('it has no fields');
  let fields: unknown;
  try {
    fields = JSON.parse(Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength).toString('utf8'));
  } catch {
    throw malformed('its fields are no JSON');
  }
  return checkControl(fields, shape);
}

/** The object of `readControl`, of which more is known by now. @throws ShoalError `protocol` when it is not of that shape. */
export function checkControl<T>(fields: unknown, shape: Shape<T>): T {
  return parse('a message of the parameter server', shape, fields);
}

/** An error as a field. */
export function packError({ code, message }: ShoalError): unknown {
  return { code, message };
}

/** The error that `packError` made; undefined when there is none. */
export function unpackError(packed: ValueOf<typeof packedError> | undefined): ShoalError | undefined {
  return packed && new ShoalError(packed.code as ErrorCode, packed.message);
}

/** A server's notice about its optimiser, as fields. */
export function packNotice({ version, refuses }: OptimizerNotice): ControlFields {
  return { optimizer: version, refuses };
}

/** The notice that `packNotice` made; undefined when there is none. */
export function unpackNotice(fields: { readonly optimizer?: number; readonly refuses?: boolean }): OptimizerNotice | undefined {
  return fields.optimizer === undefined ? undefined : { version: fields.optimizer, refuses: fields.refuses === true };
}
