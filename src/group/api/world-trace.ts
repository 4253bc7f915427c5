/** The timeline of both threads of a rank: written when the rank leaves the world, or at the end of the process if the script fails;
 *  and repeatedly while the rank runs, for `--watch`. */
import { hostname } from 'node:os';
import { systemClock } from '../../base/clock.ts';
import { writeOrWarn } from '../../base/files/write-file.ts';
import type { Logger } from '../../base/log.ts';
import { writeChromeTrace, type TraceRates } from '../../trace/chrome.ts';
import { createRecorder, nullRecorder, type TraceRecorder, type TraceSnapshot } from '../../trace/recorder.ts';
import { RepeatedWrite } from '../../trace/repeated-write.ts';
import type { WorldInfo, WorldPlan } from '../shared/comm-protocol.ts';
import type { CommClient } from '../caller/comm-client.ts';

/** The time that the comm thread may take to give its part to a process that is ending. */
const lastMs = 1000;

export class WorldTrace {
  readonly recorder: TraceRecorder;
  readonly #plan: WorldPlan;
  readonly #client: CommClient;
  readonly #info: WorldInfo;
  readonly #log: Logger;
  readonly #isOn: boolean;
  #repeated: RepeatedWrite | undefined;
  readonly #atExit = (): void => this.#writeAtExit();

  constructor(plan: WorldPlan, client: CommClient, info: WorldInfo, log: Logger) {
    this.#plan = plan;
    this.#client = client;
    this.#info = info;
    this.#log = log;
    const { traceDir, traceEvents, traceIntervalMs } = plan.settings;
    this.#isOn = traceDir !== '';
    this.recorder = this.#isOn ? createRecorder({ clock: systemClock, thread: 'main', eventsMax: traceEvents }) : nullRecorder;
    if (!this.#isOn) return;
    process.once('exit', this.#atExit);
    this.#repeated = new RepeatedWrite({ clock: systemClock, intervalMs: traceIntervalMs, write: (begun) => this.#writeNow(begun) });
  }

  /** @throws what ended the comm thread. */
  async write(): Promise<void> {
    this.#repeated?.end();
    process.off('exit', this.#atExit);
    if (!this.#isOn) return;
    const comm = await this.#client.takeTrace();
    writeOrWarn(this.#log, () => this.#write(comm));
  }

  async #writeNow(begun: () => void): Promise<void> {
    const comm = await this.#client.takeTrace();
    if (this.#repeated?.isOver === true) return;
    begun();
    this.#write(comm);
  }

  #writeAtExit(): void {
    let comm: TraceSnapshot | undefined;
    try {
      comm = this.#client.takeTraceSync(lastMs);
    } catch {
      // The process is ending for a reason of its own, which is what its user must see.
      return;
    }
    writeOrWarn(this.#log, () => this.#write(comm));
  }

  #write(comm: TraceSnapshot | undefined): void {
    const { rank, settings } = this.#plan;
    const { clockOffsetMs, topology } = this.#info;
    const memory = topology.hosts.findIndex((ranks) => ranks.includes(rank));
    const origin = { rank, host: hostname(), pid: process.pid, offsetMs: clockOffsetMs, memory, rates: ratesOf(this.#info) };
    writeChromeTrace(settings.traceDir, origin, [this.recorder.snapshot(), ...(comm === undefined ? [] : [comm])]);
  }
}

/** The measured ones of the rates by which plans are chosen. */
function ratesOf({ model, linkFrom, copyByte }: WorldInfo): TraceRates {
  return {
    ...(model && linkFrom && model.networkByte > 0 ? { link: model.networkByte, linkFrom } : {}),
    ...(copyByte === undefined ? {} : { copy: copyByte }),
  };
}
