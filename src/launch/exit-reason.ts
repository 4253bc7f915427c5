/** The end of a process in words, and the exit code that stands for it. */
import { constants } from 'node:os';

export interface Ending {
  /** Null when a signal ended it. */
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

export function succeeded(ending: Ending): boolean {
  return ending.code === 0;
}

/** The exit code that a shell reports: the process's own, or 128 + the number of the signal that ended it. */
export function exitCodeOf(ending: Ending): number {
  if (ending.signal !== null) return 128 + constants.signals[ending.signal];
  return ending.code ?? 1;
}

/** `exited with code 3`, `was killed by SIGSEGV: …`. */
export function describeEnding(ending: Ending): string {
  if (ending.signal === null) return `exited with code ${ending.code}${codeHints[ending.code ?? 0] ?? ''}`;
  const hint = signalHints[ending.signal];
  return `was killed by ${ending.signal}${hint === undefined ? '' : ` (${hint})`}`;
}

const signalHints: Readonly<Partial<Record<NodeJS.Signals, string>>> = {
  SIGKILL: 'by hand, or by the system because memory ran out: see `dmesg`, or memory.events of the control group',
  SIGSEGV: 'a memory error in native code',
  SIGBUS: 'a mapped file or shared memory could not be backed: is /dev/shm or the memory limit full?',
  SIGABRT: 'it aborted itself; Node.js does so when its heap is full: see --max-old-space-size',
  SIGILL: 'an instruction that this processor does not have',
  SIGFPE: 'an arithmetic error in native code',
  SIGXCPU: 'its limit of processor time is used up',
};

const codeHints: Readonly<Partial<Record<number, string>>> = {
  13: ' (a top-level await never finished: something waits for an event that cannot come)',
  126: ' (the program could not be executed)',
  127: ' (the program was not found)',
  134: ' (it aborted; Node.js does so when its heap is full: see --max-old-space-size)',
};
