/** Runs several programs that succeed or end together, and that never outlive this process. */
import { spawn, type ChildProcess } from 'node:child_process';

export interface Program {
  readonly command: readonly string[];
  /** Variables in addition to this process's. */
  readonly environment: Readonly<Record<string, string>>;
}

export interface TogetherOptions {
  readonly timeoutMs: number;
  /** Ends all programs early. */
  readonly signal?: AbortSignal;
}

/** Time from the polite signal to the one that kills. */
const killAfterMs = 3000;
const tailBytes = 8192;
/** Every contestant's malloc asks for huge pages, as most kernels give them unasked. Where a kernel gives them only when asked, Open MPI
 *  takes twelve times as long for 100 MiB (it allocates in every call), which says nothing about its all-reduce. glibc 2.35 and later. */
const hugePages = { GLIBC_TUNABLES: 'glibc.malloc.hugetlb=1' };

interface Ended {
  readonly stdout: string;
  readonly stderr: string;
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

/** Resolves with the first program's stdout when all have ended with 0. Otherwise all are ended, and the first failure is
 *  thrown with what that program wrote to stderr. An interruption of ours (SIGINT, SIGTERM, SIGHUP) ends them too. */
export async function runTogether(programs: readonly Program[], { timeoutMs, signal }: TogetherOptions): Promise<string> {
  let failure: Error | undefined;
  const children: ChildProcess[] = [];
  const stop = (reason: Error): void => {
    if (failure !== undefined) return;
    failure = reason;
    for (const child of children) kill(child, 'SIGTERM');
    setTimeout(() => children.forEach((child) => kill(child, 'SIGKILL')), killAfterMs).unref();
  };
  const interrupted = (name: NodeJS.Signals): void => stop(new Error(`interrupted by ${name}`));
  const aborted = (): void => stop(new Error('interrupted'));
  const names = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const name of names) process.on(name, interrupted);
  signal?.addEventListener('abort', aborted);
  const timer = setTimeout(() => stop(new Error(`${programs[0].command.join(' ')}: not finished after ${timeoutMs / 1000} s`)), timeoutMs);
  try {
    const endings = programs.map(async (program, index) => {
      const { child, ended } = start(program);
      children.push(child);
      const end = await ended;
      if (end.code !== 0) stop(new Error(describe(program, { index, end })));
      return end;
    });
    if (signal?.aborted === true) aborted();
    const [first] = await Promise.all(endings);
    if (failure !== undefined) throw failure;
    return first.stdout;
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', aborted);
    for (const name of names) process.off(name, interrupted);
  }
}

function start({ command: [file, ...args], environment }: Program): { child: ChildProcess; ended: Promise<Ended> } {
  // The child has a process group of its own, so that all processes that it starts end with it.
  const child = spawn(file, args, {
    env: { ...process.env, ...hugePages, ...environment },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  let stdout = '';
  let stderr = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-tailBytes)));
  const ended = new Promise<Ended>((resolve) => {
    child.on('error', (error) => resolve({ stdout, stderr: error.message, code: null, signal: null }));
    child.on('close', (code, signal) => resolve({ stdout, stderr, code, signal }));
  });
  return { child, ended };
}

function kill({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, signal);
  } catch {
    // The process has ended already.
  }
}

function describe({ command }: Program, { index, end }: { index: number; end: Ended }): string {
  return `program ${index} (${command.join(' ')}) ended with ${end.signal ?? `code ${end.code}`}\n${end.stderr.trimEnd()}`;
}
