/** What tasks ask of each other, and how those requests look. */
import * as z from 'zod/mini';
import { ShoalError } from '../../base/errors.ts';

export const Method = { register: 1, deregister: 2, run: 3, endStep: 4, abortStep: 5, recvTensor: 6, recvSome: 7 } as const;

const stepId = z.int().check(z.nonnegative());
const text = z.string().check(z.maxLength(10_000));
/** Keys of one request at most. */
export const keysMax = 100_000;

export const registerSchema = z.object({
  handle: text,
  interOpParallelism: z.int().check(z.positive()),
  /** Graphs as data; their values are the values of the message. */
  partitions: z.array(z.object({ device: text, nodes: z.array(z.unknown()) })),
});

export const handleSchema = z.object({ handle: text });

export const runSchema = z.object({
  handle: text,
  stepId,
  timeoutMs: z.number().check(z.positive()),
  fetchCount: z.int().check(z.nonnegative()),
  /** Which feed each value of the message is. */
  feeds: z.array(z.int().check(z.nonnegative())),
});

export const ranSchema = z.object({
  requests: z.int(),
  /** Which fetch each value of the message is. */
  fetches: z.array(z.int().check(z.nonnegative())),
});

export const stepSchema = z.object({ stepId });

export const abortSchema = z.object({ stepId, code: text, message: text });

export const recvSchema = z.object({ stepId, keys: z.array(text).check(z.maxLength(keysMax)) });

export const recvSomeSchema = z.object({ items: z.array(z.tuple([stepId, text])).check(z.maxLength(keysMax)) });

/** Which items of the request the values of a part are. */
export const someSchema = z.object({ items: z.array(z.int().check(z.nonnegative())) });

/** @throws ShoalError `protocol` that names what was asked. */
export function parse<T>(what: string, schema: z.ZodMiniType<T>, fields: unknown): T {
  const parsed = schema.safeParse(fields);
  if (parsed.success) return parsed.data;
  throw new ShoalError('protocol', `${what} is not well formed: ${parsed.error.issues[0]?.message ?? '?'}`);
}
