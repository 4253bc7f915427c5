/** A rank's comm thread tells how the rank is: who asks through the job's store, and Prometheus where the process has a port of its own. */
import type { Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import type { Settings } from '../base/settings/settings.ts';
import type { Logger } from '../base/log.ts';
import type { Store } from '../store/store.ts';
import type { CallCounters } from './call-counters.ts';
import { checkCollector, EpochSpans } from './epoch-spans.ts';
import { metricsPage, parsePlace, servePages, type Endpoint } from './endpoint.ts';
import { answerQuestions } from './questions.ts';
import { tellJob, tellProcess } from './rank-tells-job.ts';
import { reportOf, type RankReport, type WorldFacts } from './rank-report.ts';
import { labelled } from './job-status.ts';
import type { serveStatus } from './status-socket.ts';

const settingName = 'SHOAL_METRICS';
/** Calls are counted, for the page of the launcher. */
const countedAlone = 'on';

/** True if calls are counted. @throws ShoalError `config` for what is no place to listen at, and no collector. */
export function checkMetrics({ metrics, otlpEndpoint }: Pick<Settings, 'metrics' | 'otlpEndpoint'>): boolean {
  if (metrics !== '' && metrics !== countedAlone) parsePlace(settingName, metrics);
  checkCollector(otlpEndpoint);
  return metrics !== '' || otlpEndpoint !== '';
}

export interface RankTellerOptions {
  readonly clock: Clock;
  readonly log: Logger;
  readonly settings: Pick<Settings, 'metrics' | 'otlpEndpoint'>;
  /** Ranks of the world at first. */
  readonly size: number;
  readonly board: SharedArrayBuffer;
  /** The comm thread's; undefined: metrics are off. */
  readonly counters: CallCounters | undefined;
  readonly facts: () => Omit<WorldFacts, 'epoch' | 'size'>;
  /** Absent: nobody can ask. */
  readonly serveStatus?: typeof serveStatus;
}

export class RankTeller {
  readonly #options: RankTellerOptions;
  readonly #over = new AbortController();
  readonly #spans = new EpochSpans();
  #epoch = 0;
  #size: number;
  #endpoint: Endpoint | undefined;
  /** Number of this process among those of its host. */
  #index = 0;
  #startMs = 0;

  constructor(options: RankTellerOptions) {
    this.#options = options;
    this.#size = options.size;
  }

  /** @param store of the world. @param job its name, where no launcher tells of it. Never rejects. */
  async answer(store: Store, job: string | undefined): Promise<void> {
    const { facts, clock, size, serveStatus: serve, log } = this.#options;
    const { rank, hostName: host } = facts();
    void answerQuestions(store, String(rank), () => this.#report(), this.#over.signal);
    if (job === undefined || serve === undefined) return;
    const told = { job, store, rank, size, host, startMs: this.#startMs, now: () => clock.now() };
    try {
      await tellProcess(told);
      if (this.#index > 0) return;
      const end = await tellJob(told, serve);
      if (this.#over.signal.aborted) end();
      else this.#over.signal.addEventListener('abort', end);
    } catch (thrown) {
      log.debug(`shoal status will not find this job: ${messageOf(thrown)}`);
    }
  }

  /** The world has been joined. Processes of a host listen at one port after the other. @param index of this process among them.
   *  @param size ranks of the world, where it is not what it was at first. */
  async begin(index: number, size = this.#size): Promise<void> {
    this.#size = size;
    const { settings, log, clock } = this.#options;
    [this.#index, this.#startMs] = [index, clock.now()];
    this.#spans.begin(this.#report(), this.#size, clock.wallNow());
    if (settings.metrics === '' || settings.metrics === countedAlone) return;
    const { host, port } = parsePlace(settingName, settings.metrics);
    try {
      const page = await metricsPage(() => labelled(this.#report()));
      const endpoint = await servePages({ host, port: port + index }, { '/metrics': page });
      if (this.#over.signal.aborted) endpoint.close();
      else this.#endpoint = endpoint;
    } catch (thrown) {
      log.warn(`${messageOf(ShoalError.from(thrown))}; the job goes on without metrics of this rank`);
    }
  }

  /** The world goes on with so many ranks. */
  resized(size: number): void {
    this.#epoch++;
    this.#size = size;
    this.#spans.begin(this.#report(), size, this.#options.clock.wallNow());
  }

  /** Tells the collector, where there is one. Never rejects. */
  async send(world: string): Promise<void> {
    const { settings, log, clock } = this.#options;
    if (settings.otlpEndpoint === '') return;
    await this.#spans
      .send(settings.otlpEndpoint, world, this.#report(), clock.wallNow())
      .catch((thrown: unknown) => log.warn(messageOf(thrown)));
  }

  close(): void {
    this.#over.abort();
    this.#endpoint?.close();
  }

  #report(): RankReport {
    const { facts, board, counters, clock } = this.#options;
    return reportOf({ ...facts(), epoch: this.#epoch, size: this.#size }, board, counters, clock.now());
  }
}
