/** From a run's folder to the data of its page. */
import { basename } from 'node:path';
import type { ChromeTrace } from '../trace/chrome.ts';
import { mergeTraces } from '../trace/merge.ts';
import { endsOf } from './ends.ts';
import { failureOf } from './failure.ts';
import { linksOf } from './links.ts';
import { collectivesOf } from './operations.ts';
import type { RunFolder } from './read-folder.ts';
import { receivesOf } from './receives.ts';
import type { ReportData } from './data/report-data.ts';
import { timelineOf, type TimelineLimits } from './timeline.ts';

/** Some 10 MB of page. */
const defaultLimits: TimelineLimits = { spansMax: 250_000, valuesMax: 4000 };

const nothing: ChromeTrace = {
  traceEvents: [],
  displayTimeUnit: 'ms',
  otherData: { format: 'shoal-trace', version: 1, processes: [] },
};

/** The script without its folders, and its arguments. */
function titleOf([script, ...args]: readonly string[]): string | undefined {
  return script === undefined ? undefined : [basename(script), ...args].join(' ');
}

/** @param name Of the run, where the launcher does not say what was run. @throws ShoalError `usage` when two traces are of one rank. */
export function buildReport(name: string, run: RunFolder, limits: TimelineLimits = defaultLimits): ReportData {
  const merged = run.traces.length === 0 ? nothing : mergeTraces(run.traces);
  const { names, details, rows, counters, leftOut } = timelineOf(merged, limits);
  const { processes } = merged.otherData;
  const ends = endsOf(processes);
  const dropped = processes.reduce((sum, process) => sum + process.dropped, 0);
  const warnings = [...run.warnings];
  if (dropped > 0) warnings.push(`${dropped} events fell out of the ranks' rings before they were written; raise SHOAL_TRACE_EVENTS`);
  if (leftOut > 0) warnings.push(`${leftOut} of the shortest spans are not drawn; tables count all`);
  return {
    version: 1,
    title: titleOf(run.launcher?.command ?? []) ?? name,
    startedAt: run.launcher?.startedAt ?? processes.map(({ wallStart }) => wallStart).sort()[0] ?? null,
    durationUs: merged.traceEvents.reduce((end, { ts, dur = 0 }) => Math.max(end, ts + dur), 0),
    failure: failureOf(run.flights, run.launcher?.failure ?? null),
    warnings,
    names,
    details,
    rows,
    counters,
    ends: ends.ends,
    links: linksOf(processes, ends),
    ...collectivesOf(merged, ends),
    ...receivesOf(merged),
    losses: run.losses,
  };
}
