/** The cause of a failed run, from what its ranks left in their flight recorders and what the launcher saw. */
import type { FlightDump, FlightEntry } from '../../trace/flight-recorder.ts';
import { groupBy, listed } from '../../base/collections/lists.ts';
import type { RunFolder } from './read-folder.ts';
import type { ReportFailure } from './data/report-data.ts';

/** Lines at most about the last calls of ranks, and of different errors. */
const linesMax = 64;

/** @param run What the launcher said of the first rank that failed, and the flight records. @param traced Ranks that left a trace. */
export function failureOfRun(
  { flights, launcher: record }: Pick<RunFolder, 'flights' | 'launcher'>,
  traced: readonly number[],
): ReportFailure | null {
  const launcher = record?.failure ?? null;
  // A job that goes on without ranks has records of calls that failed as they were lost.
  const isSurvived = (record?.changes ?? []).length > 0;
  if (launcher === null && (flights.length === 0 || isSurvived)) return null;
  const behind = ranksBehind(flights);
  // The same of all ranks that tell it: `rank 2 lost rank 1 (shm)` is `lost rank 1 (shm)`.
  const errors = groupBy(
    flights.flatMap(({ rank, entries }) =>
      entries.flatMap(({ error }) => (error === null ? [] : [{ rank, error: error.replaceAll(`: rank ${rank} lost `, ': lost ') }])),
    ),
    ({ error }) => error,
  );
  // Most ranks say what happened; a few say what came of it.
  const told = [...errors].sort(([, a], [, b]) => b.length - a.length);
  // A rank that was told of no error had one of its own, or was killed: what others tell came of that.
  const blamed = Number(/^rank (\d+) /.exec(launcher ?? '')?.[1] ?? Number.NaN);
  const isFirst = !Number.isNaN(blamed) && !told.some(([, found]) => found.some(({ rank }) => rank === blamed));
  const silent = silentRanks(flights, [...traced, blamed]);
  const launcherSays = launcher === null ? [] : [launcher, ...(record?.details ?? [])];
  const [, left] = /because of rank (\d+), which ended before it, with code 0/.exec(launcher ?? '') ?? [];
  const causes = [
    ...(left === undefined ? [] : [`rank ${left} ended with code 0 while others still called`]),
    ...(isFirst ? launcherSays : []),
    ...told.map(([error, found]) => `${names([...new Set(found.map(({ rank }) => rank))])}: ${error}`),
    ...behind,
    ...(silent.length === 0 ? [] : [`${names(silent)} left no record: killed, or ended without being asked`]),
    ...(isFirst ? [] : launcherSays),
  ].flatMap((cause) => cause.split('\n'));
  // The failed call says where it was called.
  const quiet = flights.filter(({ entries }) => entries.every(({ error }) => error === null));
  const last = quiet.toSorted((a, b) => a.rank - b.rank).flatMap(({ rank, entries }) => lastCall(rank, entries) ?? []);
  const [headline = 'a group failed; its ranks had no call under way', ...others] = causes;
  return { headline, lines: [...others.slice(0, linesMax), ...last.slice(0, linesMax)] };
}

/** Ranks that did not make a call which others of the group wait for. */
function ranksBehind(flights: readonly FlightDump[]): string[] {
  const groups = new Set(flights.flatMap(({ pg_status }) => Object.keys(pg_status)));
  return [...groups].flatMap((id) => {
    const members = flights.filter(({ pg_status }) => pg_status[id] !== undefined);
    const latest = Math.max(...members.map(({ pg_status }) => pg_status[id].last_enqueued_collective));
    const late = members.filter(({ pg_status }) => pg_status[id].last_enqueued_collective < latest);
    if (late.length === 0) return [];
    const awaited = members
      .flatMap(({ entries }) => entries)
      .find((entry) => String(entry.pg_id) === id && !entry.is_p2p && entry.collective_seq_id === latest);
    const group = members[0].pg_config[id]?.name ?? id;
    const what = awaited === undefined ? `call ${latest}` : `call ${latest}, ${describe(awaited)}`;
    return [`${names(late.map(({ rank }) => rank))} did not make ${what} of group '${group}', which the others wait for`];
  });
}

/** Ranks of the groups that left nothing, and of which nothing is told. @param others Ranks that left a trace, or are known to have
 *  failed. */
function silentRanks(flights: readonly FlightDump[], others: readonly number[]): number[] {
  const known = new Set([...flights.map(({ rank }) => rank), ...others]);
  const members = flights.flatMap(({ pg_config }) => Object.values(pg_config).flatMap(({ ranks }) => ranks.match(/\d+/g) ?? []));
  return [...new Set(members.map(Number))].filter((rank) => !known.has(rank)).sort((a, b) => a - b);
}

function lastCall(rank: number, entries: readonly FlightEntry[]): string | undefined {
  const last = entries.at(-1);
  return last && `rank ${rank} last called ${describe(last)}: ${last.state}`;
}

function describe({ profiling_name, input_dtypes, input_sizes, frames }: FlightEntry): string {
  const where = frames.length === 0 ? '' : ` at ${frames[0].filename}:${frames[0].line}`;
  return `${profiling_name.replace(/^shoal:/, '')} ${input_dtypes[0] ?? ''}[${input_sizes[0]?.join(', ') ?? ''}]${where}`;
}

/** `rank 3`, `ranks 1, 3, 4 and 12 more`. */
function names(ranks: readonly number[]): string {
  return `${ranks.length === 1 ? 'rank' : 'ranks'} ${listed(ranks)}`;
}
