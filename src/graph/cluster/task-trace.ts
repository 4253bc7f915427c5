/** The timeline of a task: its sessions' steps, its requests, each tensor from the moment it is asked for, and at the sender how
 *  long it was waited for there. Both ends say step and tensor, so that a report can tell waiting from travelling:
 *
 *      receiver   ├──────────────── recv h1 ─────────────────┤
 *      sender           ├───── wait h1 ─────┤
 *                 request            ready · answer leaves    arrival */
import { hostname } from 'node:os';
import type { Clock } from '../../base/clock.ts';
import { writeOrWarn } from '../../base/files/write-file.ts';
import type { Logger } from '../../base/log.ts';
import { parseRendezvousKey } from '../../rendezvous/table/rendezvous-key.ts';
import { writeChromeTrace } from '../../trace/chrome.ts';
import { nullRecorder, type LaneId, type NameId, type NameOptions, type TraceRecorder } from '../../trace/recorder.ts';
import { RepeatedWrite } from '../../trace/repeated-write.ts';

/** Tensors whose names are kept ready; the recorder has no more either. */
const namesMax = 4096;
const category = 'graph';

export interface TraceTarget {
  readonly folder: string;
  readonly rank: number;
  /** The time between writes before the last one; 0: there are none. */
  readonly intervalMs: number;
  readonly clock: Clock;
  readonly log: Logger;
}

export class TaskTrace {
  readonly #recorder: TraceRecorder;
  readonly #lanes: { readonly steps: LaneId; readonly requests: LaneId; readonly receives: LaneId; readonly sends: LaneId };
  readonly #received = new Map<string, NameId>();
  readonly #sent = new Map<string, NameId>();
  readonly #file: TraceTarget | undefined;
  readonly #repeated: RepeatedWrite | undefined;
  readonly #atExit = (): void => this.#writeLast();

  /** @param file where the trace is written, at the latest when the process ends. Default: nowhere. */
  constructor(recorder: TraceRecorder = nullRecorder, file?: TraceTarget) {
    this.#recorder = recorder;
    const lane = (name: string): LaneId => recorder.lane(name);
    this.#lanes = { steps: lane('steps'), requests: lane('requests'), receives: lane('receives'), sends: lane('sends') };
    this.#file = file;
    if (file === undefined) return;
    process.once('exit', this.#atExit);
    this.#repeated = new RepeatedWrite({ ...file, write: () => this.#write() });
  }

  get enabled(): boolean {
    return this.#recorder.enabled;
  }

  now(): number {
    return this.#recorder.now();
  }

  /** A step of a session of this process, over all tasks. */
  step(stepId: number, startMs: number, requests: number): void {
    if (!this.enabled) return;
    const name = this.#recorder.name('step', { category, argument: 'step', second: 'requests' });
    this.#recorder.complete(name, startMs, this.#lanes.steps, stepId, requests);
    this.#recorder.counter(this.#recorder.name('RPCs per step', { category }), requests);
  }

  /** One request that has been answered. */
  request(method: 'RecvTensor' | 'FuseRecvTensor' | 'RecvSome', task: string, startMs: number, tensors: number): void {
    if (!this.enabled) return;
    const name = this.#recorder.name(method, { category, argument: 'tensors', details: { from: task } });
    this.#recorder.complete(name, startMs, this.#lanes.requests, tensors);
    this.#recorder.counter(this.#recorder.name('tensors per request', { category }), tensors);
  }

  /** One tensor that was asked for at `startMs`; an error and a dead tensor have no bytes. */
  received(key: string, stepId: number, startMs: number, bytes: number): void {
    if (!this.enabled) return;
    const name = this.#nameOf(this.#received, key, 'recv', 'bytes');
    this.#recorder.complete(name, startMs, this.#lanes.receives, stepId, bytes);
  }

  /** A request of another task for one tensor. */
  watch(stepId: number, key: string): RequestWatch {
    const startMs = this.now();
    let readyMs = 0;
    return {
      ready: () => {
        readyMs = this.now() - startMs;
      },
      left: () => {
        const name = this.#nameOf(this.#sent, key, 'wait', 'readyMs');
        this.#recorder.complete(name, startMs, this.#lanes.sends, stepId, readyMs);
      },
    };
  }

  /** Writes it for the last time. */
  write(): void {
    this.#repeated?.end();
    process.off('exit', this.#atExit);
    this.#writeLast();
  }

  #writeLast(): void {
    if (this.#file !== undefined) writeOrWarn(this.#file.log, () => this.#write());
  }

  /** Clocks count from the same moment on every host: by what these hold for the time. Where the process is in a group as well, that one's
   *  file says better. */
  #write(): void {
    if (this.#file === undefined) return;
    const { folder, rank } = this.#file;
    writeChromeTrace(folder, { rank, host: hostname(), pid: process.pid, offsetMs: 0, part: 'graph' }, [this.#recorder.snapshot()]);
  }

  #nameOf(names: Map<string, NameId>, key: string, verb: string, second: string): NameId {
    // All iterations of a loop have one name.
    const text = key.slice(0, key.lastIndexOf(';') + 1);
    const found = names.get(text);
    if (found !== undefined) return found;
    const made = names.size < namesMax ? this.#recorder.name(...describe(key, verb, second)) : 0;
    if (names.size < namesMax) names.set(text, made);
    return made;
  }
}

/** A request at its sender. */
export interface RequestWatch {
  /** The value is there. */
  ready(): void;
  /** The value leaves: alone, or with those that it was asked for with. */
  left(): void;
}

/** A text that others send may be no key: it is refused elsewhere. */
function describe(key: string, verb: string, second: string): [string, NameOptions] {
  const options = { category, argument: 'step', second };
  try {
    const { name: tensor, sendDevice: from, recvDevice: to } = parseRendezvousKey(key);
    return [`${verb} ${tensor}`, { ...options, details: { tensor, from, to } }];
  } catch {
    return [`${verb} (no key)`, options];
  }
}
