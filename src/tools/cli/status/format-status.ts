/** The state of a job as text: a line for each rank, and who holds the others up. */
import { listed } from '../../../base/collections/lists.ts';
import { inColumns } from '../../draw/columns.ts';
import type { JobStatus, RankStatus, ServerStatus } from '../../../metrics/job-status.ts';

/** A job as `shoal run` tells of it. */
export interface ToldStatus extends JobStatus {
  readonly command: readonly string[];
  /** Since the launcher was started. */
  readonly seconds: number;
}

/** Lines of ranks in the same state, beyond which only their numbers are told. */
const linesMax = 64;
/** Ranks by their numbers, of which a line has at most 16. */
const named = (ranks: readonly number[]): string => `rank${ranks.length === 1 ? '' : 's'} ${listed(ranks, 16)}`;

export function formatStatus(status: ToldStatus): string {
  const { job, launcher, nodes, restarts, ranks, servers, command, seconds } = status;
  const where = nodes === 1 ? '' : ` on ${nodes} nodes`;
  const again = restarts === 0 ? '' : `, started again ${restarts === 1 ? 'once' : `${restarts} times`}`;
  // With those that have joined, which the size at the beginning does not count.
  const size = `${ranks.length} ${ranks.length === 1 ? 'rank' : 'ranks'}`;
  const who =
    launcher.rank === undefined
      ? `launcher ${launcher.pid}`
      : `not started by shoal run; rank ${launcher.rank}, pid ${launcher.pid}, tells`;
  const head = `job ${job} (${who}), ${size}${where}, for ${time(seconds)}${again}: ${command.join(' ')}`;
  const shown = ranks.length <= linesMax ? ranks : ranks.filter((each) => isOdd(each, status)).slice(0, linesMax);
  const rows = [['rank', 'state', 'since', 'step', 'calls', 'pid', ''], ...shown.map(rowOf)];
  const hidden = ranks.length - shown.length;
  return [
    head,
    '',
    ...inColumns(rows, (column) => column < 2 || column === 6).map((line) => line.trimEnd()),
    ...(hidden > 0 ? [`… and ${hidden} more: ${counted(ranks)}; --json has all`] : []),
    ...servers.map(serverLine),
    '',
    ...verdict(status),
    '',
  ].join('\n');
}

function serverLine({ name, pid, end, state, report }: ServerStatus): string {
  const about =
    report === undefined ? '' : `, ${report.requests} requests, ${report.waiting} waiting, ${report.keys} keys, ${report.clients} clients`;
  const alive =
    state === 'T' ? 'stopped by a signal' : report === undefined ? 'does not answer' : report.role === 'standby' ? 'stands by' : 'serves';
  return `${name}: ${end ?? alive + about} (pid ${pid ?? report?.pid ?? '?'})`;
}

function isOdd({ rank, state }: RankStatus, { holdUps }: JobStatus): boolean {
  return !['computing', 'waiting', 'communicating', 'ended'].includes(state) || holdUps.some((each) => each.rank === rank);
}

function counted(ranks: readonly RankStatus[]): string {
  const states = [...new Set(ranks.map(({ state }) => state))];
  return states.map((state) => `${ranks.filter((each) => each.state === state).length} ${state}`).join(', ');
}

function rowOf(status: RankStatus): string[] {
  const { rank, state, call, steps = 0, stepSeconds, calls, pid } = status;
  const since = call?.seconds ?? (state === 'computing' ? stepSeconds : undefined);
  const step = steps === 0 ? '–' : String(steps);
  return [String(rank), state, since === undefined ? '–' : time(since), step, String(calls ?? '–'), String(pid ?? '–'), aboutOf(status)];
}

function aboutOf({ state, call, calls, end, failure, pid }: RankStatus): string {
  if (end !== undefined) return end;
  if (failure !== undefined) return failure.split('\n')[0];
  if (state === 'stopped') return `stopped by a signal; kill -CONT ${pid} lets it go on`;
  if (state === 'silent') return 'does not answer: its comm thread is busy';
  if (state === 'starting') return 'has not joined';
  if (state === 'unknown') return 'does not answer, and neither does its launcher';
  if (call === undefined) return calls === undefined ? 'has no group or store that could be asked' : '';
  const { text, ranks, path, group } = call;
  const place = [group && `group '${group}'`, path].filter((part) => part !== undefined).join(', ');
  return `${text}${place === '' ? '' : ` (${place})`}${ranks.length === 0 ? '' : ` for ${named(ranks)}`}`;
}

function verdict({ holdUps, ranks }: JobStatus): string[] {
  if (holdUps.length > 0) {
    return holdUps.map(({ rank, waiting, seconds }) => {
      const state = ranks.find((each) => each.rank === rank)?.state ?? 'unknown';
      const whom = waiting.length === 0 ? 'itself' : named(waiting);
      return `rank ${rank} holds up ${whom}${seconds === undefined ? '' : ` for ${time(seconds)}`}: it is ${state}`;
    });
  }
  const odd = ranks.filter(({ state }) => state === 'stopped' || state === 'silent' || state === 'failed' || state === 'unknown');
  if (odd.length > 0) return odd.map(({ rank, state }) => `rank ${rank} is ${state}`);
  return [ranks.length === 1 ? 'the rank goes on' : 'no rank waits for another'];
}

function time(seconds: number): string {
  if (seconds < 60) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  return seconds < 3600
    ? `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`
    : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
