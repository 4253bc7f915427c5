/** Spans of the program's own on the timeline of its rank. */
import { ShoalError } from '../../base/errors.ts';
import { anyText, callback, checkArgument, describeValue, isPlainObject } from '../../base/schema.ts';
import type { TraceRecorder } from '../../trace/recorder.ts';
import type { WorldHandle } from '../caller/world-handle.ts';

const nameMax = 256;

/** A span's arguments on the timeline. */
type SpanDetails = Readonly<Record<string, string | number>>;

/** Runs `fn`; the span ends when it returns or throws, or what it returns settles. */
export function span<T>(trace: TraceRecorder, name: string, fn: () => T, details?: SpanDetails): T {
  checkArgument('span: name', name, anyText);
  checkArgument('span: fn', fn, callback);
  if (name === '' || name.length > nameMax)
    throw new ShoalError('usage', `span: a name has 1 to ${nameMax} characters, not ${name.length}`);
  if (details !== undefined) checkDetails(details);
  if (!trace.enabled) return fn();
  const id = trace.name(name, details === undefined ? { category: 'user' } : { category: 'user', details });
  const startMs = trace.now();
  const end = (): void => trace.complete(id, startMs);
  let result: T;
  try {
    result = fn();
  } catch (thrown) {
    end();
    throw thrown;
  }
  if (typeof (result as { then?: unknown } | null | undefined)?.then === 'function') (result as PromiseLike<unknown>).then(end, end);
  else end();
  return result;
}

/** A training step ends: drawn from the end of the one before. */
export function markStep({ board, trace }: Pick<WorldHandle, 'board' | 'trace'>): void {
  const beganMs = board.stepMs;
  // Drawn first, so that it ends before the next one begins.
  if (beganMs > 0 && trace.enabled) trace.complete(trace.name('step', { category: 'user' }), beganMs, trace.lane('steps'));
  board.step();
}

function checkDetails(details: SpanDetails): void {
  const isText = (value: unknown): boolean => typeof value === 'string' || Number.isFinite(value);
  if (isPlainObject(details) && Object.values(details).every(isText)) return;
  throw new ShoalError('usage', `span: details are texts and numbers by name, not ${describeValue(details)}`);
}
