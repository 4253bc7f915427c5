/** Processes of this host, as others of its processes see them: which one it is, and whether it has ended. */
import { readFileSync, readlinkSync } from 'node:fs';

export interface ProcessIdentity {
  readonly pid: number;
  /** Equal for processes that see each other's numbers; empty when that cannot be known. */
  readonly host: string;
  /** When it was started, in ticks since the host was: numbers are used again. */
  readonly birth: number;
}

/** @param name another name makes another host; an equal one makes none of two. */
export function ownProcess(name = ''): ProcessIdentity {
  return { pid: process.pid, host: hostOf(name), birth: statusOf(process.pid)?.birth ?? 0 };
}

/** The arguments of this process; those of a thread are its own. */
export function ownCommand(): string[] {
  try {
    return readFileSync('/proc/self/cmdline', 'utf8').split('\0').slice(1, -1);
  } catch {
    return process.argv.slice(1);
  }
}

/** True when the number of one process says the same to the other. */
export function areOfOneHost(one: ProcessIdentity, other: ProcessIdentity): boolean {
  return one.host !== '' && one.host === other.host;
}

/** True when a process of this host has certainly ended. */
export function hasEnded({ pid, birth }: ProcessIdentity): boolean {
  const status = statusOf(pid);
  // Processes of other users may be hidden.
  return status === undefined ? !isAlive(pid) : status.birth !== birth || status.state === 'Z' || status.state === 'X';
}

/** The letter of proc(5) for what a process does: `T` is stopped by a signal. Undefined: there is none, or the system does not say. */
export function stateOf(pid: number): string | undefined {
  return statusOf(pid)?.state;
}

/** A text that must be the same for one process to open the other's /proc/<pid>/fd: the running system, and the numbers it shows. */
function hostOf(name: string): string {
  try {
    // A container without a /proc of its own shows the numbers of another one.
    if (readlinkSync('/proc/self') !== String(process.pid)) return '';
    return `${readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()}/${readlinkSync('/proc/self/ns/pid')}/${name}`;
  } catch {
    return ''; // not Linux: memory of another process cannot be mapped there
  }
}

/** State and time of birth of a process; undefined when there is none, or it is hidden. Source: proc(5), /proc/pid/stat, fields 3 and
 *  22. */
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

/** True if this number is a process's, also one of another user, whose entry in /proc may be hidden. */
export function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
