/** Lets others look at the job of `shoal run` while it runs: `shoal status`, a page for Prometheus, a file for node_exporter. */
import { systemClock } from '../../../base/clock.ts';
import { messageOf, ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import type { JobWatch } from '../../../launch/job-watch.ts';
import type { Launch } from '../../../launch/launch-options.ts';
import type { Page } from '../../../metrics/endpoint.ts';
import type { Sample } from '../../../metrics/definitions.ts';
import { serveStatus } from '../../../metrics/status-socket.ts';

export interface ViewOptions {
  readonly environment: Environment;
  readonly command: readonly string[];
  /** The address that Prometheus reads. */
  readonly metrics: string | undefined;
  /** The folder that node_exporter reads. */
  readonly textfile: string | undefined;
  readonly warn: (line: string) => void;
}

export class JobView {
  readonly #options: ViewOptions;
  readonly #startMs = systemClock.now();
  readonly #closing: (() => void)[] = [];
  #job: Launch | undefined;
  /** The answer that is awaited, for all that ask meanwhile. */
  readonly #asked = new Map<'job' | 'node', Promise<JobWatch>>();

  constructor(options: ViewOptions) {
    this.#options = options;
  }

  /** Variables of the ranks. One that has a port of its own keeps it. */
  variables(): Environment {
    const { metrics, textfile, environment } = this.#options;
    const isWanted = (metrics ?? textfile) !== undefined && (environment['SHOAL_METRICS'] ?? '') === '';
    return isWanted ? { SHOAL_METRICS: 'on' } : {};
  }

  /** @throws (rejects) ShoalError `config` when Prometheus could not read where it was told to. */
  async open(): Promise<void> {
    const { metrics, textfile, environment, warn } = this.#options;
    if ((metrics ?? textfile) !== undefined) await this.#openMetrics(metrics, textfile);
    try {
      this.#closing.push(await serveStatus(environment, () => this.#told()));
    } catch (thrown) {
      warn(`shoal status will not find this job: ${messageOf(thrown)}`);
    }
  }

  follow(job: Launch): void {
    this.#job = job;
  }

  close(): void {
    for (const close of this.#closing) close();
  }

  async #openMetrics(metrics: string | undefined, textfile: string | undefined): Promise<void> {
    const { metricsPage, parsePlace, servePages, writeTextfile } = await import('../../../metrics/endpoint.ts');
    const place = metrics === undefined ? undefined : parsePlace('--metrics', metrics);
    const page: Page = await metricsPage(() => this.#samples());
    if (place !== undefined) this.#closing.push((await servePages(place, { '/metrics': page })).close);
    if (textfile === undefined) return;
    const file = { clock: systemClock, warn: this.#options.warn, folder: textfile, name: `shoal-${process.pid}.prom` };
    this.#closing.push(writeTextfile(file, page));
  }

  async #samples(): Promise<readonly Sample[]> {
    const { nodeSamples } = await import('../../../metrics/job-status.ts');
    try {
      const watched = await this.#watch('node');
      return nodeSamples(watched, watched.own);
    } catch (thrown) {
      // Before the nodes have joined there is nothing to tell.
      if (ShoalError.from(thrown).code === 'closed') return [];
      throw thrown;
    }
  }

  async #told(): Promise<object> {
    const { status } = await this.#watch('job');
    return { ...status, command: this.#options.command, seconds: (systemClock.now() - this.#startMs) / 1000 };
  }

  #watch(of: 'job' | 'node'): Promise<JobWatch> {
    const known = this.#asked.get(of);
    if (known !== undefined) return known;
    if (this.#job === undefined) return Promise.reject(new ShoalError('closed', 'the job is being started'));
    const asked = this.#job.watch(of).finally(() => this.#asked.delete(of));
    this.#asked.set(of, asked);
    return asked;
  }
}
