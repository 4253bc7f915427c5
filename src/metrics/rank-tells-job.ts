/** A job that no launcher of ours has started (torchrun, mpirun, srun, by hand) tells `shoal status` of itself: the first rank of each
 *  machine answers at a socket, from what all ranks say through the store. It must not know worlds. */
import { isAlive, ownCommand, stateOf } from '../base/files/process-identity.ts';
import { list, object, anyText, count } from '../base/schema.ts';
import type { Store } from '../store/store.ts';
import { askJob, type NodeFacts } from './job-status.ts';
import type { serveStatus } from './status-socket.ts';

export interface ToldJob {
  readonly job: string;
  readonly store: Store;
  readonly rank: number;
  readonly size: number;
  readonly host: string;
  /** When the ranks joined, on the clock. */
  readonly startMs: number;
  readonly now: () => number;
}

const key = 'processes';
const processesShape = list(object({ rank: count, pid: count, host: anyText }));

/** Publishes which process a rank is, so that others of this machine can see its state, also while it is stopped. */
export async function tellProcess({ store, rank, host }: ToldJob): Promise<void> {
  await store.append(key, `,${JSON.stringify({ rank, pid: process.pid, host })}`);
}

/** Answers `shoal status` on this machine. @returns what ends it. */
export async function tellJob(told: ToldJob, serve: typeof serveStatus): Promise<() => void> {
  const { job, store, rank, size, host, startMs, now } = told;
  const { pid } = process;
  return serve(process.env, async () => {
    const own: NodeFacts = { node: 0, host, pid, processes: await processesOn(host, store) };
    const ranks = Array.from({ length: size }, (_, each) => each);
    const { status } = await askJob({ store, launchers: store, job, own, nodes: 1, others: [], ranks, worldSize: size, restarts: 0 });
    return { ...status, launcher: { ...status.launcher, rank }, command: ownCommand(), seconds: (now() - startMs) / 1000 };
  });
}

async function processesOn(host: string, store: Store): Promise<NodeFacts['processes']> {
  const known: unknown = JSON.parse(
    `[${Buffer.from(await store.get(key))
      .toString()
      .slice(1)}]`,
  );
  if (processesShape.problem(known) !== undefined) return [];
  return (known as { rank: number; pid: number; host: string }[])
    .filter((each) => each.host === host)
    .map(({ rank, pid }) => {
      const end = isAlive(pid) ? {} : { end: 'has ended' };
      return { name: `rank ${rank}`, rank, pid, restarts: 0, state: stateOf(pid), ...end };
    });
}
