/** The launcher's words about a failure: the ends of the other processes, then the one that failed first, and why. They are few lines for
 *  any number of ranks; the files of `--log-dir` have everything. Pure. */
import { hostname } from 'node:os';
import { groupBy } from '../base/collections/lists.ts';
import { exitCodeOf, succeeded } from './exit-reason.ts';
import type { JobFailure } from './node-records.ts';
import { lastError, stderrHint } from './output/stderr-hint.ts';
import type { EndedProcess } from './supervisor.ts';

/** The launcher says no more lines in one generation. */
const linesMax = 12;
/** Most kinds of ends that get a line each. */
const kindsMax = 3;
/** Lines of stderr that are repeated when no error is known. */
const saidMax = 4;
/** Lines for the cause, however much has been said before. */
const detailsMin = 3;
const namesMax = 4;
const errorMax = 200;
/** Lines about the place of an error that a failure carries to other nodes and to the report. */
const detailsMax = 20;

/** A process of this node that has ended badly, as the failure of its job. */
export function failureOf(failed: EndedProcess, { node, final }: Pick<JobFailure, 'node' | 'final'>): JobFailure {
  const { name, rank, pid, afterMs } = failed;
  const when = `${(afterMs / 1000).toFixed(1)} s after the start`;
  const text = `${rank === undefined ? `${name} ` : ''}${failed.text}, ${when} (pid ${pid})`;
  // One that was asked to leave may end well, and with it the job fails where too few are left.
  const exitCode = exitCodeOf(failed.ending) || 1;
  return { node, host: hostname(), ...(rank === undefined ? {} : { rank }), exitCode, text, final };
}

/** The failure with what its process has written so far. */
export function withErrorOf(failure: JobFailure, failed: EndedProcess | undefined): JobFailure {
  const error = failed && errorOf(failed);
  if (error === undefined) return failure;
  const details = failed?.words().uncaught?.details.slice(0, detailsMax);
  return { ...failure, error, ...(details && { details }) };
}

/** The error that ended a process, as far as its output has been read. */
export function errorOf(ended: EndedProcess): string | undefined {
  const { said, uncaught } = ended.words();
  return uncaught?.error ?? lastError(said);
}

/** `rank 2 exited with code 3: TypeError: x is not a function`. */
export function describeEnd(ended: EndedProcess): string {
  return withError(`${ended.name} ${ended.text}`, errorOf(ended));
}

/** `rank 0, rank 1 exited with code 0`. */
export function describeEnds(ends: readonly EndedProcess[]): string {
  const [{ text }] = ends;
  return `${namesOf(ends)} ${ends.length === 1 ? text : text.replace(/^was /, 'were ')}`;
}

function namesOf(ends: readonly EndedProcess[]): string {
  const names = ends.map(({ name }) => name);
  if (names.length <= namesMax) return names.join(', ');
  return `${names.slice(0, namesMax - 1).join(', ')} and ${names.length - namesMax + 1} others`;
}

/** Processes that ended badly beside the one that failed first, those with like words together. */
export function describeOthers(ends: readonly EndedProcess[], first: EndedProcess | undefined): string[] {
  const bad = ends.filter(({ ending }) => !succeeded(ending));
  // Errors of the same kind differ in numbers.
  const kinds = groupBy(bad, (ended) => describeEnd(ended).slice(ended.name.length).replaceAll(/\d+/g, '#'));
  const groups = [...kinds.values()];
  const told = groups.length > kindsMax ? groups.slice(0, kindsMax - 1) : groups;
  const rest = groups.slice(told.length).flat();
  const firstError = first && errorOf(first);
  const lines = told.map((group) => {
    const error = errorOf(group[0]);
    return withError(describeEnds(group), error !== undefined && error === firstError ? 'the same error' : error?.slice(0, errorMax));
  });
  return rest.length === 0 ? lines : [...lines, `${namesOf(rest)} ended badly, too`];
}

/** The failure and its details. `saidLines`: the number of lines said before. `logFolder`: the folder with the whole output of the
 *  process. */
export function describeFirst(
  failure: JobFailure,
  {
    node,
    failed,
    saidLines,
    logFolder,
  }: { node: number; failed: EndedProcess | undefined; saidLines: number; logFolder: string | undefined },
): string[] {
  const headline = describeFailure(failure, node);
  if (failed === undefined || failure.node !== node) return [headline];
  const { said, uncaught } = failed.words();
  const words = said.trimEnd();
  const lines = uncaught?.details ?? (words === '' ? [] : words.split('\n'));
  const hint = stderrHint([said, uncaught?.error, ...lines].join('\n'));
  const room = Math.max(detailsMin, linesMax - saidLines - 1 - (hint === undefined ? 0 : 1));
  const max = uncaught === undefined ? Math.min(saidMax, room) : room;
  const shown = lines.length <= max ? lines : uncaught === undefined ? lines.slice(-max) : lines.slice(0, max - 1);
  const left = uncaught === undefined ? 0 : lines.length - shown.length;
  const where = logFolder === undefined ? 'which --log-dir keeps' : `in ${logFolder}/stderr.log`;
  return [
    uncaught === undefined ? `${headline}; ${words === '' ? 'it wrote nothing to stderr' : 'its last words on stderr:'}` : headline,
    ...shown.map((line) => `  | ${line}`),
    ...(left > 0 ? [`  | … ${left} more lines, ${where}`] : []),
    ...(hint === undefined ? [] : [hint]),
  ];
}

export function describeFailure(failure: JobFailure, node: number): string {
  const where = failure.node === node ? '' : ` on node ${failure.node} (${failure.host})`;
  if (failure.rank !== undefined) return withError(`rank ${failure.rank}${where} failed first: it ${failure.text}`, failure.error);
  return failure.node === node ? `the job ended: ${failure.text}` : `node ${failure.node} (${failure.host}) failed: ${failure.text}`;
}

function withError(text: string, error: string | undefined): string {
  return error === undefined ? text : `${text}: ${error}`;
}
