/** Builds the data of a run's page from its folder. Traces are read event by event, once: what is kept has a bound, whatever their size. */
import { basename } from 'node:path';
import { isShoalError, messageOf } from '../../base/errors.ts';
import type { ChromeEvent } from '../../trace/chrome.ts';
import { aligned, alignProcesses } from '../../trace/merge.ts';
import { endsOf } from './ends.ts';
import { failureOfRun } from './failure.ts';
import { linksOf } from './links.ts';
import { CollectivesBuilder } from './operations.ts';
import type { RunFolder } from './read-folder.ts';
import { receivesOf } from './receives.ts';
import { isOfGraph } from './span-argument.ts';
import { adviceOf } from './steps.ts';
import type { ReportData } from './data/report-data.ts';
import { TimelineBuilder, type TimelineLimits } from './timeline.ts';

/** Some 6 MB of page. */
const defaultLimits: TimelineLimits = { spansMax: 150_000, valuesMax: 4000 };
/** Spans of graphs that the tables look at. */
const graphSpansMax = 500_000;

/** The script without its folders, and its arguments. */
function titleOf([script, ...args]: readonly string[]): string | undefined {
  return script === undefined ? undefined : [basename(script), ...args].join(' ');
}

/** @param name Of the run, where the launcher does not say what was run. @throws ShoalError `usage` when two traces are of one rank. */
export function buildReport(name: string, run: RunFolder, limits: TimelineLimits = defaultLimits): ReportData {
  const alignment = alignProcesses(run.traces.flatMap(({ metadata }) => metadata.processes));
  const { processes } = alignment;
  const warnings = [...(run.launcher?.changes ?? []), ...run.warnings];
  const ends = endsOf(processes);
  const timeline = new TimelineBuilder(limits);
  const collectives = new CollectivesBuilder(processes, ends);
  const graphSpans: ChromeEvent[] = [];
  let graphSpansLeft = 0;
  for (const trace of run.traces) {
    try {
      for (const raw of trace.events()) {
        const event = aligned(raw, alignment);
        timeline.add(event);
        collectives.add(event);
        if (!isOfGraph(event)) continue;
        if (graphSpans.length < graphSpansMax) graphSpans.push(event);
        else graphSpansLeft++;
      }
    } catch (thrown) {
      warnings.push(`${isShoalError(thrown) ? thrown.message : `${trace.name}: ${messageOf(thrown)}`}; what comes after it is not shown`);
    }
    for (const { rank, part } of trace.metadata.processes) if (part === undefined) collectives.endRank(rank);
  }
  const { leftOut, ...drawn } = timeline.finish();
  const { every, ...told } = collectives.finish();
  const dropped = processes.reduce((sum, process) => sum + process.dropped, 0);
  if (dropped > 0) warnings.push(`${dropped} events fell out of the ranks' rings before they were written; raise SHOAL_TRACE_EVENTS`);
  if (leftOut > 0) warnings.push(`${leftOut} of the shortest spans are not drawn; tables count all`);
  if (every > 1) warnings.push(`the table of operations looks at one of ${every} calls`);
  if (graphSpansLeft > 0) warnings.push(`the tables of graphs leave out the last ${graphSpansLeft} spans`);
  const traced = processes.map(({ rank }) => rank);
  const failure = failureOfRun(run, traced);
  return {
    version: 1,
    title: titleOf(run.launcher?.command ?? []) ?? name,
    startedAt: run.launcher?.startedAt ?? processes.map(({ wallStart }) => wallStart).sort()[0] ?? null,
    failure,
    warnings,
    ...drawn,
    ends: ends.ends,
    links: linksOf(processes, ends),
    ...told,
    advice: adviceOf({ failure, ...told }),
    ...receivesOf(graphSpans),
    losses: run.losses,
  };
}
