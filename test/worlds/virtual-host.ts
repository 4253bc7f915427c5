/** Processes of a host in a seeded world, which a launcher starts, signals and buries. The program of each is a function. */
import { EventEmitter } from 'node:events';
import { PassThrough } from 'node:stream';
import { must } from '../../src/base/assert.ts';
import { ShoalError } from '../../src/base/errors.ts';
import type { Environment } from '../../src/base/settings/settings.ts';
import type { Role, SeededWorld } from '../../src/base/testing/seeded-world.ts';
import type { JobProcesses } from '../../src/ps/job/server-process.ts';
import type { Guard, GuardedCommand, GuardedProcess } from '../../src/launch/guard.ts';

export interface VirtualProcess {
  readonly pid: number;
  readonly name: string;
  readonly role: Role;
  readonly environment: Environment;
  /** Called by SIGTERM in place of the process's end. */
  onTerminate: (() => void) | undefined;
  say(text: string): void;
  exit(code: number): void;
}

export type Program = (process: VirtualProcess) => Promise<void>;

export class VirtualHost {
  readonly #world: SeededWorld;
  readonly #programs: Readonly<Record<string, Program>>;
  readonly #processes = new Map<number, Running>();
  #pids = 100;

  constructor(world: SeededWorld, programs: Readonly<Record<string, Program>>) {
    this.#world = world;
    this.#programs = programs;
  }

  /** The process that now runs under a name. */
  named(name: string): VirtualProcess | undefined {
    return [...this.#processes.values()].find((each) => each.name === name && !each.role.ended);
  }

  get running(): string[] {
    return [...this.#processes.values()].filter(({ role }) => !role.ended).map(({ name }) => name);
  }

  /** Names of the processes that a launcher has started and that have not ended. */
  namesOf(launcher: Role): string[] {
    return [...this.#processes.values()].filter((each) => each.launcher === launcher && !each.role.ended).map(({ name }) => name);
  }

  /** True if a launcher has ended a process of that name by SIGTERM. */
  wasTerminated(name: string): boolean {
    return [...this.#processes.values()].some((each) => each.name === name && each.signal === 'SIGTERM');
  }

  roleOf(pid: number): Role {
    return must(this.#processes.get(pid), () => `there was a process ${pid}`).role;
  }

  kill(name: string): boolean {
    const process = this.named(name);
    return process !== undefined && this.#signal(process.pid, 'SIGKILL');
  }

  /** The guard of a launcher, whose processes end with it. */
  guard(launcher: Role): Guard {
    launcher.onEnd(() => {
      for (const process of this.#processes.values()) if (process.launcher === launcher) process.end(null, 'SIGKILL');
    });
    return {
      spawn: (command) => this.#spawn(launcher, command),
      signal: (pid, signal) => this.#signal(pid, signal),
      forget: () => undefined,
      end: async () => undefined,
    };
  }

  processesOf(pid: number): JobProcesses {
    const own = { pid, host: 'virtual', birth: 1, pulse: '' };
    return {
      own: () => own,
      isHere: () => true,
      isGone: (process) => this.roleOf(process.pid).ended,
      ask: async ({ pid: asked }) => {
        const { ended, stopped } = this.roleOf(asked);
        return ended ? 'ended' : stopped ? 'silent' : 'runs';
      },
      end: async (_clock, process) => void this.#signal(process.pid, 'SIGKILL'),
    };
  }

  #spawn(launcher: Role, { command, environment }: GuardedCommand): GuardedProcess {
    const pid = this.#pids++;
    const name =
      environment['SHOAL_ROLE'] === 'server' || environment['SHOAL_ROLE'] === 'standby'
        ? `${environment['SHOAL_ROLE']} ${environment['SHOAL_SERVER']}`
        : `rank ${environment['RANK']}`;
    const role = this.#world.role(name);
    const running = new Running({ pid, name, role, environment }, launcher);
    this.#processes.set(pid, running);
    const program = must(this.#programs[command[0]], () => `there is a program ${command[0]}`);
    launcher.turn(() => running.child.emit('spawn'));
    role.turn(() => {
      program(running).then(
        () => running.exit(0),
        (thrown: unknown) => {
          if (!(thrown instanceof ShoalError)) running.fault = thrown;
          running.say(thrown instanceof Error ? `${thrown.message}\n` : String(thrown));
          running.exit(1);
        },
      );
    });
    return running.child as unknown as GuardedProcess;
  }

  /** Exceptions of programs other than our own errors. */
  get faults(): unknown[] {
    return [...this.#processes.values()].flatMap(({ fault }) => (fault === undefined ? [] : [fault]));
  }

  #signal(pid: number, signal: NodeJS.Signals | 0): boolean {
    const running = this.#processes.get(pid);
    if (running === undefined || running.role.ended) return false;
    if (signal === 'SIGKILL') running.end(null, signal);
    else if (signal !== 0) running.role.interrupt(() => running.terminate(signal));
    return true;
  }
}

class Running implements VirtualProcess {
  readonly pid: number;
  readonly name: string;
  readonly role: Role;
  readonly environment: Environment;
  readonly child: EventEmitter & { readonly pid: number; readonly stdout: PassThrough; readonly stderr: PassThrough; kill(): boolean };
  readonly launcher: Role;
  onTerminate: (() => void) | undefined;
  /** The signal that has ended it. */
  signal: NodeJS.Signals | null = null;
  fault: unknown;

  constructor({ pid, name, role, environment }: Pick<VirtualProcess, 'pid' | 'name' | 'role' | 'environment'>, launcher: Role) {
    this.pid = pid;
    this.name = name;
    this.role = role;
    this.environment = environment;
    this.launcher = launcher;
    this.child = Object.assign(new EventEmitter(), { pid, stdout: new PassThrough(), stderr: new PassThrough(), kill: () => true });
  }

  /** Sends SIGTERM: a process without handler ends without another turn. */
  terminate(signal: NodeJS.Signals): void {
    const { onTerminate } = this;
    if (onTerminate === undefined) this.end(null, signal);
    else this.role.turn(onTerminate);
  }

  say(text: string): void {
    if (!this.role.ended) this.child.stderr.write(text);
  }

  exit(code: number): void {
    this.end(code, null);
  }

  end(code: number | null, signal: NodeJS.Signals | null): void {
    if (this.role.ended) return;
    this.signal = signal;
    this.role.end();
    this.launcher.turn(() => {
      this.child.emit('exit', code, signal);
      this.child.stdout.end();
      this.child.stderr.end();
    });
  }
}
