/** A present or former server process, as other processes of its host see it: whether it has ended, and ending it.
 *
 *  A server writes new values into the workers' memory. If it is stopped while it writes, it may go on when it is
 *  resumed, and no message can prevent that: when another process becomes the server, the former one must have ended before any
 *  further use of that memory. Processes that share memory with it see the same process numbers, and can end it. */
import { readFileSync, readlinkSync } from 'node:fs';
import { sleep, type Clock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import { isAlive } from '../../base/files/is-alive.ts';
import type { Pulse } from './pulse.ts';

export interface ServerProcess {
  readonly pid: number;
  /** Equal for processes that see each other's numbers; empty when that cannot be known. */
  readonly host: string;
  /** When it was started, in ticks since the host was: numbers are used again. */
  readonly birth: number;
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
  /** It is of this host, and has ended. */
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
  const own = hostOf(hostId);
  const isHere = ({ host }: ServerProcess): boolean => host !== '' && host === own;
  const isGone = (former: ServerProcess): boolean => isHere(former) && hasEnded(former);
  return {
    own: () => ({ pid: process.pid, host: own, birth: statusOf(process.pid)?.birth ?? 0, pulse }),
    isHere,
    isGone,
    ask: async (other) => (isGone(other) ? 'ended' : ask(other.pulse)),
    end: async (clock, former) => (isHere(former) ? endProcess(clock, former) : undefined),
  };
}

/** True when a process of this host has certainly ended. */
function hasEnded(former: ServerProcess): boolean {
  const status = statusOf(former.pid);
  // Processes of other users may be hidden.
  return status === undefined ? !isAlive(former.pid) : status.birth !== former.birth || status.state === 'Z' || status.state === 'X';
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

/** A text that must be the same for one process to open the other's /proc/<pid>/fd: the running system, and the numbers it shows. Another name makes
 *  another host; an equal one makes none of two. */
function hostOf(name: string): string {
  try {
    // A container without a /proc of its own shows the numbers of another one.
    if (readlinkSync('/proc/self') !== String(process.pid)) return '';
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()}/${readlinkSync('/proc/self/ns/pid')}/${name}`;
  } catch {
    return ''; // not Linux: memory of another process cannot be mapped there
  }
}

/** Undefined when there is no such process, or it is hidden. Source: proc(5), /proc/pid/stat, fields 3 and 22. */
function statusOf(pid: number): { state: string; birth: number } | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'latin1');
  } catch {
    return undefined;
  }
  // The name, field 2, may hold spaces and parentheses.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  return { state: fields[0] ?? '', birth: Number(fields[19]) };
}
