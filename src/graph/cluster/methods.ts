/** The calls between tasks: their numbers, and the schemas of their fields. */
import { anyList, count, integer, list, number, object, text } from '../../base/schema.ts';

export const Method = { register: 1, deregister: 2, run: 3, endStep: 4, abortStep: 5 } as const;

const stepId = count;
const name = text(10_000);

export const registerSchema = object({
  handle: name,
  interOpParallelism: integer({ min: 1 }),
  /** Graphs as data; their values are the values of the message. */
  partitions: list(object({ device: name, nodes: anyList })),
});

export const handleSchema = object({ handle: name });

export const runSchema = object({
  handle: name,
  stepId,
  timeoutMs: number({ above: 0 }),
  fetchCount: count,
  /** The number of the feed that each value of the message is. */
  feeds: list(count),
});

export const ranSchema = object({
  requests: integer(),
  /** The number of the fetch that each value of the message is. */
  fetches: list(count),
});

export const stepSchema = object({ stepId });

export const abortSchema = object({ stepId, code: name, message: name });
