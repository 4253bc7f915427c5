/** A present or former server process, as other processes of its host see it: whether it has ended, and ending it.
 *
 *  A server writes new values into the workers' memory. If it is stopped while it writes, it may go on when it is
 *  resumed, and no message can prevent that: when another process becomes the server, the former one must have ended before any
 *  further use of that memory. Processes that share memory with it see the same process numbers, and can end it. */
import { sleep, type Clock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { areOfOneHost, hasEnded, ownProcess, type ProcessIdentity } from '../../base/files/process-identity.ts';
import type { Pulse } from './pulse.ts';

export interface ServerProcess extends ProcessIdentity {
  /** URL at which it answers that it runs. */
  readonly pulse: string;
}

/** Time that a process may take to die of SIGKILL. */
const endMs = 10_000;
const pollMs = 10;

/** The processes of a job, as one of them sees them. */
export interface JobProcesses {
  own(): ServerProcess;
  /** Its memory can be mapped by this one. */
  isHere(process: ServerProcess): boolean;
  /** True for a process of this host that has ended. */
  isGone(process: ServerProcess): boolean;
  /** Whether it runs, wherever it is; it says so itself. */
  ask(process: ServerProcess): Promise<Pulse>;
  end(clock: Clock, former: ServerProcess): Promise<void>;
}

export interface ProcessesOptions {
  /** A name that processes of one host must have in common, too, so that one machine can play several; empty: none. */
  readonly hostId: string;
  /** The URL at which this process answers. */
  readonly pulse: string;
  readonly ask: (pulse: string) => Promise<Pulse>;
}

export function systemProcesses({ hostId, pulse, ask }: ProcessesOptions): JobProcesses {
  const own = { ...ownProcess(hostId), pulse };
  const isHere = (other: ServerProcess): boolean => areOfOneHost(other, own);
  const isGone = (former: ServerProcess): boolean => isHere(former) && hasEnded(former);
  return {
    own: () => own,
    isHere,
    isGone,
    ask: async (other) => (isGone(other) ? 'ended' : ask(other.pulse)),
    end: async (clock, former) => (isHere(former) ? endProcess(clock, former) : undefined),
  };
}

/** Resolves when it is gone, or can have none of our memory: another user's. Threads of this process that serve are not ended.
 *  @throws ShoalError `system` when it does not die. */
async function endProcess(clock: Clock, former: ServerProcess): Promise<void> {
  if (former.pid === process.pid || hasEnded(former)) return;
  try {
    process.kill(former.pid, 'SIGKILL');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EPERM') return;
    if (!hasEnded(former)) throw new ShoalError('system', `process ${former.pid} cannot be ended: ${messageOf(error)}`, { cause: error });
  }
  for (const deadlineMs = clock.now() + endMs; !hasEnded(former); await sleep(clock, pollMs)) {
    if (clock.now() > deadlineMs) throw new ShoalError('system', `process ${former.pid}, which was a server, does not end on SIGKILL`);
  }
}
