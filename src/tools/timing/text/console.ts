/** Prints a benchmark's events for people: the table on stdout as rows come, a bar on stderr where that is a terminal. */
import type { Writable } from 'node:stream';
import { SingleBar } from 'cli-progress';
import { must } from '../../../base/assert.ts';
import { isPairTest } from '../collective.ts';
import type { SizeRange } from '../options.ts';
import type { BenchEvent, BenchHeader } from '../report.ts';
import { formatOsuHeader, formatOsuRow } from './osu-table.ts';
import { formatFooter, formatHeader, formatRow, formatStage } from './table.ts';

export interface BenchConsoleOptions {
  readonly stdout: Writable;
  readonly stderr: NodeJS.WriteStream;
  readonly range: SizeRange;
  readonly iterations: number;
  readonly warmup: number;
}

export class BenchConsole {
  readonly #options: BenchConsoleOptions;
  readonly #bar: SingleBar;
  #header: BenchHeader | undefined;
  #started = false;

  constructor(options: BenchConsoleOptions) {
    this.#options = options;
    this.#bar = new SingleBar({
      format: '{bar} {value}/{total}  {stage}',
      stream: options.stderr,
      hideCursor: true,
      clearOnComplete: true,
      // Without a terminal there is no bar at all.
      noTTYOutput: false,
    });
  }

  show(event: BenchEvent): void {
    switch (event.event) {
      case 'header':
        this.#header = event.header;
        this.#write(isOsu(event.header) ? formatOsuHeader(event.header) : formatHeader(event.header, this.#options));
        return;
      case 'progress':
        if (this.#started) this.#bar.update(event.done, { stage: formatStage(event.bytes, event.half) });
        else this.#bar.start(event.total, event.done, { stage: formatStage(event.bytes, event.half) });
        this.#started = true;
        return;
      case 'row':
        this.#write((isOsu(this.#known) ? formatOsuRow : formatRow)(event.row, this.#known.options));
        return;
      case 'end':
        if (!isOsu(this.#known)) this.#write(formatFooter(event.summary, this.#known.options));
    }
  }

  /** Removes the bar. Idempotent. */
  close(): void {
    if (this.#started) this.#bar.stop();
    this.#started = false;
  }

  get #known(): BenchHeader {
    return must(this.#header, () => 'the header comes first');
  }

  /** Writes a row. The bar remembers its line, which a row would move: it is removed first, and the next progress draws it again. */
  #write(text: string): void {
    this.close();
    this.#options.stdout.write(text);
  }
}

/** OSU's tables end with the last row. */
function isOsu({ options }: BenchHeader): boolean {
  return options.overlap === true || isPairTest(options.collective);
}
