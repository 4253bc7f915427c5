/** A session that goes on after a task was restarted: TensorFlow's MonitoredTrainingSession. The chief saves the variables now and then.
 *  When a task comes back, without its variables, it restores all of them; other sessions wait for that. Each then runs the step that
 *  failed again. */
import { existsSync } from 'node:fs';
import { sleep, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { anyText, anything, checkFields, flag, number, optionTable } from '../../base/schema.ts';
import type { Store } from '../../store/store.ts';
import type { Feeds, Fetch, Fetched, RunOptions, Session } from '../execute/session.ts';
import type { Node } from '../structure/graph-node.ts';

/** Options of `GraphServer.monitoredSession`. */
export interface MonitoredSessionOptions {
  /** A `Saver` of all variables. */
  readonly saver: Record<'save' | 'restore', (session: Session, path: string) => Promise<void>>;
  /** File of the saved variables, for the chief. */
  readonly path: string;
  /** Gives the variables their first values, when there is no file. */
  readonly init: Node;
  /** True: this session initialises, saves and restores. Default: that of task 0 of its job. */
  readonly isChief?: boolean;
  /** Steps of the chief from one save to the next. Default 100. */
  readonly saveSteps?: number;
  /** Time limit for a lost task to come back, and to get its variables. Default 60,000. */
  readonly recoveryMs?: number;
}

const optionKeys = optionTable<MonitoredSessionOptions>({
  saver: anything,
  path: anyText,
  init: anything,
  isChief: flag,
  saveSteps: number({ min: 1 }),
  recoveryMs: number({ above: 0 }),
});

/** The server, as this session sees it. */
interface Surroundings {
  readonly store: Store;
  readonly clock: Clock;
  readonly isFirst: boolean;
  readonly open: () => Promise<Session>;
  /** Text that differs when a task of another job was started anew. */
  readonly incarnations: () => Promise<string>;
  /** Aborted when nothing comes back. */
  readonly over: AbortSignal;
}

const pollMs = 200;

/** Made by `GraphServer.monitoredSession`. */
export class MonitoredSession {
  readonly #around: Surroundings;
  readonly #options: Required<MonitoredSessionOptions>;
  #session: Session | undefined;
  #incarnations = '';
  #steps = 0;

  /** Called by `GraphServer.monitoredSession`. */
  static async open(around: Surroundings, options: MonitoredSessionOptions): Promise<MonitoredSession> {
    checkFields('monitoredSession', options, optionKeys);
    const made = new MonitoredSession(around, options);
    await made.#begin();
    return made;
  }

  private constructor(around: Surroundings, options: MonitoredSessionOptions) {
    this.#around = around;
    this.#options = { isChief: around.isFirst, saveSteps: 100, recoveryMs: 60_000, ...options };
  }

  /** One step, as `Session.run`; once more from the last save when a task was lost. One at a time.
   *  @throws ShoalError `peer-lost` when the task does not come back; other failures at once. */
  async run<const F extends readonly Fetch[]>(feeds: Feeds, fetches: F, options?: RunOptions): Promise<Fetched<F>> {
    const { isChief, saveSteps, saver, path, recoveryMs } = this.#options;
    let deadlineMs = Infinity;
    for (;;) {
      try {
        this.#session ??= await this.#begin();
        if (isChief && this.#steps % saveSteps === 0) await saver.save(this.#session, path);
        const fetched = await this.#session.run(feeds, fetches, options);
        this.#steps++;
        return fetched;
      } catch (thrown) {
        deadlineMs = Math.min(deadlineMs, this.#around.clock.now() + recoveryMs);
        await this.#awaitChange(thrown, deadlineMs);
        this.close();
      }
    }
  }

  /** Ends the steps in flight. */
  close(): void {
    this.#session?.close();
    this.#session = undefined;
  }

  /** @throws what was thrown, unless another process has taken the place of a task. */
  async #awaitChange(thrown: unknown, deadlineMs: number): Promise<void> {
    const { over, incarnations } = this.#around;
    const isLost = ShoalError.from(thrown).code === 'peer-lost';
    while (!over.aborted) {
      if ((await incarnations()) !== this.#incarnations) return;
      if (!isLost || this.#around.clock.now() > deadlineMs) throw thrown;
      await sleep(this.#around.clock, pollMs);
    }
    throw thrown;
  }

  /** A session over the present tasks, whose variables have values. */
  async #begin(): Promise<Session> {
    const { store, open, incarnations } = this.#around;
    const { isChief, saver, path, init, recoveryMs } = this.#options;
    for (const deadlineMs = this.#around.clock.now() + recoveryMs; ;) {
      this.#incarnations = await incarnations();
      const key = `graph/ready/${this.#incarnations}`;
      this.#session = await open();
      if (isChief) {
        if (existsSync(path)) await saver.restore(this.#session, path);
        else await this.#session.run([], [init]);
        await store.set(key, Buffer.from('1'));
        return this.#session;
      }
      while ((await incarnations()) === this.#incarnations) {
        if (await store.check([key])) return this.#session;
        if (this.#around.clock.now() > deadlineMs)
          throw new ShoalError('timeout', `monitoredSession: the chief has not initialised the variables within ${recoveryMs} ms`, {
            timeoutMs: recoveryMs,
          });
        await sleep(this.#around.clock, pollMs);
      }
      this.#session.close();
    }
  }
}
