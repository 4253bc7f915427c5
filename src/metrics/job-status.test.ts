import { expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { HashStore } from '../store/hash-store.ts';
import { askJob, nodeName, nodeSamples, type NodeFacts, type ProcessFacts } from './job-status.ts';
import type { Sample } from './definitions.ts';
import { answerQuestions } from './questions.ts';
import type { RankReport, ReportedWait } from './rank-report.ts';
import { tellJob } from './rank-tells-job.ts';
import { answerForWorker, type WorkerFacts } from './worker-report.ts';

const report = (rank: number, wait?: ReportedWait): RankReport => ({
  ...{ rank, pid: 100 + rank, host: 'h', size: 4, epoch: 0, steps: 7, calls: 9, pending: wait ? 1 : 0 },
  ...(wait && { wait }),
  samples: [{ metric: 'steps', labels: {}, value: 7 }],
});
const waitFor = (...ranks: number[]): ReportedWait => ({ text: 'barrier #9', ranks, seconds: 5 });

/** A job whose ranks answer what `reports` say; those without a report are here, and do not answer. */
async function jobOf(reports: readonly (RankReport | undefined)[], processes: readonly ProcessFacts[] = []) {
  const store = new HashStore({ clock: systemClock });
  const over = new AbortController();
  for (const [rank, each] of reports.entries())
    if (each) void answerQuestions(store, String(rank), () => each, over.signal);
    else await store.set(`status/presence/${rank}`, 'here');
  const own: NodeFacts = { node: 0, host: 'h', pid: 1, processes };
  const ranks = [...reports.keys()];
  const facts = {
    ...{ store, launchers: store.prefix('launch'), job: 'j', own, nodes: 1, others: [], ranks },
    ...{ worldSize: reports.length, restarts: 2 },
  };
  return { facts, own, store, over };
}

it('blames the rank at the end of the chain', async () => {
  const { facts, over } = await jobOf([report(0, waitFor(1)), report(1, waitFor(2)), report(2), report(3, waitFor(1))]);
  const { status } = await askJob(facts);
  over.abort();
  expect(status.ranks.map(({ state }) => state)).toEqual(['waiting', 'waiting', 'computing', 'waiting']);
  expect(status.holdUps).toEqual([{ rank: 2, waiting: [0, 1, 3], seconds: 5 }]);
});

it('blames all ranks of a circle, and none for a short wait', async () => {
  const circle = await jobOf([report(0, waitFor(1)), report(1, waitFor(0))]);
  const { status } = await askJob(circle.facts);
  circle.over.abort();
  expect(status.holdUps.map(({ rank, waiting }) => [rank, waiting])).toEqual([
    [1, [0]],
    [0, [1]],
  ]);
  const short = await jobOf([report(0, { ...waitFor(1), seconds: 0.1 }), report(1)]);
  expect((await askJob(short.facts)).status.holdUps).toEqual([]);
  short.over.abort();
});

it('tells what the system says of ranks that do not answer', async () => {
  const processes: ProcessFacts[] = [
    { name: 'rank 0', rank: 0, pid: 10, restarts: 0, state: 'S' },
    { name: 'rank 1', rank: 1, pid: 11, restarts: 0, state: 'T' },
    { name: 'rank 2', rank: 2, pid: 12, restarts: 0, end: 'exited with code 0' },
    { name: 'rank 3', rank: 3, pid: 13, restarts: 1, state: 'R' },
    { name: 'server 0', pid: 14, restarts: 3, state: 'S' },
    { name: 'standby 0', pid: 15, restarts: 0, state: 'S' },
  ];
  const { facts, own, store, over } = await jobOf([report(0, waitFor(1)), undefined, undefined, undefined], processes);
  const told = { pid: 14, role: 'server', requests: 5, waiting: 1, keys: 2, clients: 4 } as const;
  const samples: Sample[] = [{ metric: 'serverRequests', labels: { kind: 'get' }, value: 5 }];
  void answerQuestions(store, 'server 0', () => ({ ...told, samples }), over.signal);
  const asked = await askJob(facts);
  over.abort();
  expect(asked.status.ranks.map(({ state }) => state)).toEqual(['waiting', 'stopped', 'ended', 'silent']);
  expect(asked.status.ranks[2]).toMatchObject({ end: 'exited with code 0', pid: 12 });
  expect(asked.status.holdUps).toEqual([{ rank: 1, waiting: [0], seconds: 5 }]);
  expect(asked.status.servers).toEqual([{ ...processes[4], report: told }, processes[5]]);
  const values = nodeSamples(asked, own).map(({ metric, labels, value }) => [metric, labels, value]);
  expect(values).toContainEqual(['up', { rank: 0 }, 1]);
  expect(values).toContainEqual(['up', { rank: 1 }, 0]);
  expect(values).toContainEqual(['steps', { rank: 0 }, 7]);
  expect(values).toContainEqual(['restarts', {}, 2]);
  expect(values).toContainEqual(['processRestarts', { process: 'server 0' }, 3]);
  expect(values).toContainEqual(['launched', {}, 5]);
  expect(values).toContainEqual(['serverUp', { process: 'server 0' }, 1]);
  expect(values).toContainEqual(['serverRequests', { process: 'server 0', kind: 'get' }, 5]);
  expect(values).toContainEqual(['serverUp', { process: 'standby 0' }, 0]);
});

it('a rank that has not joined is starting; one of a node that does not answer is unknown', async () => {
  const { facts, store, over } = await jobOf([undefined, undefined], [{ name: 'rank 0', rank: 0, pid: 10, restarts: 0, state: 'S' }]);
  await store.deleteKey('status/presence/0');
  const { status } = await askJob(facts);
  over.abort();
  expect(status.ranks.map(({ state }) => state)).toEqual(['starting', 'unknown']);
});

it('workers of a parameter server answer beside the rank of their process, or alone', async () => {
  const processes = [0, 1].map((rank) => ({ name: `rank ${rank}`, rank, pid: 10 + rank, restarts: 0, state: 'S' }));
  const { facts, own, store, over } = await jobOf([report(0), undefined], processes);
  await store.deleteKey('status/presence/1');
  const servers = [{ name: 'server 0', creditBytes: 100, inFlightBytes: 60, queued: 2, reconnects: 1 }];
  const worker: WorkerFacts = {
    calls: 4,
    pending: 1,
    failure: undefined,
    oldest: { text: "push of 'w'", seconds: 3 },
    servers,
  };
  const left = new AbortController();
  for (const rank of [0, 1]) answerForWorker(store, { group: 'kvstore', rank, size: 2 }, () => worker, left.signal);
  answerForWorker(store, { group: 'graph', rank: 1, size: 2 }, () => ({ ...worker, calls: 2, servers: [] }), over.signal);
  const { status, reports } = await askJob(facts);
  left.abort();
  const later = await askJob(facts);
  over.abort();
  const last = await askJob(facts);
  // A store that was closed is not asked any more. A process that has left all goes on, as far as is known.
  expect(later.status.ranks.map(({ calls }) => calls)).toEqual([9, 2]);
  expect(last.reports).toEqual([]);
  expect(last.status.ranks.map(({ state }) => state)).toEqual(['computing', 'computing']);
  expect(nodeSamples(last, own)).toContainEqual({ metric: 'up', labels: { rank: 1 }, value: 1 });
  expect(status.ranks).toMatchObject([
    { state: 'communicating', steps: 7, calls: 13, pending: 1, call: { text: "push of 'w'", seconds: 3 } },
    { state: 'communicating', steps: 0, calls: 6, pending: 2, call: { text: "push of 'w'", seconds: 3 } },
  ]);
  for (const { samples } of reports) {
    expect(samples).toContainEqual({ metric: 'creditUsed', labels: { group: 'server 0' }, value: 60 });
    // No value twice.
    expect(new Set(samples.map(({ metric, labels }) => JSON.stringify([metric, labels]))).size).toBe(samples.length);
  }
});

it('asks the launchers of other nodes for their processes, and for the ranks that have come later', async () => {
  const { facts, over } = await jobOf([report(0), undefined], [{ name: 'rank 0', rank: 0, pid: 10, restarts: 0, state: 'S' }]);
  const other: NodeFacts = { node: 1, host: 'g', pid: 2, processes: [{ name: 'rank 1', rank: 1, pid: 20, restarts: 0, state: 'T' }] };
  const later: ProcessFacts = { name: 'rank 10', rank: 10, pid: 30, restarts: 0, state: 'T' };
  void answerQuestions(facts.launchers, nodeName(1), () => ({ ...other, ranks: [0, 1, 9, 10] }), over.signal);
  void answerQuestions(facts.launchers, nodeName(2), () => ({ ...other, node: 2, processes: [later] }), over.signal);
  const { status } = await askJob({ ...facts, nodes: 3, others: [1, 2] });
  over.abort();
  expect(status.ranks[1]).toEqual({ rank: 1, node: 1, host: 'g', pid: 20, state: 'stopped' });
  expect(status.ranks.slice(2)).toEqual([
    { rank: 9, state: 'unknown' },
    { rank: 10, node: 2, host: 'g', pid: 30, state: 'stopped' },
  ]);
});

it('servers that no launcher has started are found by what they say, unless one node alone is looked at', async () => {
  const { facts, store, over } = await jobOf([report(0), report(1)]);
  const told = { pid: 14, role: 'server', requests: 5, waiting: 1, keys: 2, clients: 4 } as const;
  const left = new AbortController();
  void answerQuestions(store, 'server 0', () => ({ ...told, samples: [] }), over.signal);
  void answerQuestions(store, 'server 1', () => ({ ...told, samples: [] }), left.signal);
  left.abort();
  const job = { job: 'j', store, rank: 0, size: 2, host: 'h', startMs: 0, now: () => 5000 };
  await store.set('processes', '');
  const answers: (() => Promise<unknown>)[] = [];
  await tellJob(job, (_, tells) => {
    answers.push(tells);
    return Promise.resolve(() => undefined);
  });
  expect(await answers[0]()).toMatchObject({
    servers: [{ name: 'server 0', restarts: 0, report: told }],
    ranks: [{ rank: 0 }, { rank: 1 }],
  });
  expect((await askJob({ ...facts, others: undefined })).status.servers).toEqual([]);
  over.abort();
});

it('ranks are asked again and again, by several at a time, and what is not understood is no answer', async () => {
  const { facts, store, over } = await jobOf([report(0), report(1)]);
  for (let round = 0; round < 20; round++) {
    const both = await Promise.all([askJob(facts), askJob(facts), askJob({ ...facts, ranks: [1] })]);
    expect(both.map(({ reports }) => reports.length)).toEqual([2, 2, 1]);
  }
  // Three keys for each rank at most.
  expect(await store.numKeys()).toBeLessThanOrEqual(2 * 3);
  over.abort();
  const odd = await jobOf([undefined]);
  void answerQuestions(odd.store, '0', () => ({ rank: 'no' }), odd.over.signal);
  expect((await askJob(odd.facts)).reports).toEqual([]);
  odd.over.abort();
});
