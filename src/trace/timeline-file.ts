/** A timeline that is written to a named file of its own, beside the traces of ranks. */
import { basename, dirname } from 'node:path';
import type { Clock } from '../base/clock.ts';
import { writeFileWhole, writeOrWarn } from '../base/files/write-file.ts';
import type { Logger } from '../base/log.ts';
import { chromeTrace, formatChromeTrace, type TraceProcess } from './chrome.ts';
import { createRecorder, type TraceRecorder } from './recorder.ts';

export interface TimelineFileOptions {
  readonly path: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** Name of the timeline's thread. */
  readonly thread: string;
  readonly eventsMax: number;
  /** The process, without an offset: the clocks of such files are compared by wall time. */
  readonly process: Omit<TraceProcess, 'offsetMs'>;
}

export class TimelineFile {
  readonly recorder: TraceRecorder;
  readonly #options: TimelineFileOptions;
  #isWritten = false;

  constructor(options: TimelineFileOptions) {
    const { clock, thread, eventsMax } = options;
    this.#options = options;
    this.recorder = createRecorder({ clock, thread, eventsMax });
  }

  /** Writes the file, once, or warns that it cannot be written. */
  write(): void {
    if (this.#isWritten) return;
    this.#isWritten = true;
    const { path, process, log } = this.#options;
    const snapshot = this.recorder.snapshot();
    const offsetMs = snapshot.startWallMs - snapshot.startMs;
    const pieces = formatChromeTrace(chromeTrace({ ...process, offsetMs }, [snapshot]));
    writeOrWarn(log, () => writeFileWhole(dirname(path), basename(path), pieces));
  }
}
