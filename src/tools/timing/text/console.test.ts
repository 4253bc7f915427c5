/** The final contents of a terminal: a small terminal follows the control sequences. */
import { Writable } from 'node:stream';
import { expect, it } from 'vitest';
import { BenchConsole } from './console.ts';
import type { BenchEvent, BenchHeader } from '../report.ts';

const escape = '\u001b';
const pieces = new RegExp(`${escape}(?:[78]|\\[\\??\\d*[A-Za-z])|[^${escape}]`, 'g');

/** Enough of a terminal for a progress bar: lines, carriage return, save, restore, column, erase. */
class Terminal {
  readonly lines: string[] = [''];
  #row = 0;
  #column = 0;
  #saved = { row: 0, column: 0 };

  readonly stream = Object.assign(
    new Writable({
      decodeStrings: false,
      write: (text: string | Buffer, _, done) => {
        this.#take(String(text));
        done();
      },
    }),
    {
      isTTY: true,
      columns: 200,
      cursorTo: (column: number) => this.#take(`\u001b[${column + 1}G`),
      clearLine: () => this.#take('\u001b[2K'),
    },
  ) as unknown as NodeJS.WriteStream;

  #take(text: string): void {
    for (const [piece] of text.matchAll(pieces)) {
      if (piece === '\u001b7') this.#saved = { row: this.#row, column: this.#column };
      else if (piece === '\u001b8') ({ row: this.#row, column: this.#column } = this.#saved);
      else if (piece.length > 1 && piece.endsWith('G')) this.#column = Number(/\d+/.exec(piece)?.[0] ?? 1) - 1;
      else if (piece === '\u001b[2K') this.lines[this.#row] = '';
      else if (piece === '\u001b[0K' || piece === '\u001b[K') this.lines[this.#row] = this.lines[this.#row].slice(0, this.#column);
      else if (piece === '\n') {
        this.#row++;
        this.#column = 0;
        this.lines[this.#row] ??= '';
      } else if (!piece.startsWith('\u001b')) {
        const line = this.lines[this.#row].padEnd(this.#column);
        this.lines[this.#row] = line.slice(0, this.#column) + piece + line.slice(this.#column + 1);
        this.#column++;
      }
    }
  }
}

const header: BenchHeader = {
  schema: 'shoal-bench',
  version: 1,
  shoal: '0',
  node: 'v20',
  native: null,
  ranks: [],
  hosts: [],
  options: {
    collective: 'barrier',
    dtype: 'float32',
    op: 'sum',
    root: 0,
    checks: 0,
    memory: 'shared',
    touch: 'each',
    wait: 'async',
    parallel: 1,
    buckets: 1,
    backend: 'auto',
    samples: 'dropped',
  },
  stopwatchUs: 0,
};

function events(rows: number): BenchEvent[] {
  const each = Array.from({ length: rows }, (_, i): BenchEvent[] => [
    { event: 'progress', done: 2 * i, total: 2 * rows, bytes: 1024, half: 'outOfPlace' },
    { event: 'progress', done: 2 * i + 1, total: 2 * rows, bytes: 1024, half: 'inPlace' },
    { event: 'row', row: { dtype: 'float32', op: 'sum', size: i + 1, count: 0, iterations: 1, outOfPlace: null, inPlace: null } },
  ]);
  return [{ event: 'header', header }, ...each.flat(), { event: 'end', summary: { wrong: 0, averageBusBandwidth: 0 } }];
}

const range = { minBytes: 0, maxBytes: 0, stepBytes: 1, stepFactor: 1 };

it('leaves the whole table and nothing of the bar on a terminal', () => {
  const terminal = new Terminal();
  const screen = new BenchConsole({ stdout: terminal.stream, stderr: terminal.stream, range, iterations: 1, warmup: 0 });
  const shown = events(3);
  for (const event of shown.slice(0, 2)) screen.show(event);
  expect(terminal.lines.at(-1)).toMatch(/0\/6 +1KiB out-of-place/);
  for (const event of shown.slice(2)) screen.show(event);
  const rows = terminal.lines.filter((line) => !line.startsWith('#') && line !== '');
  expect(rows.map((line) => line.trim().split(/\s+/)[0])).toEqual(['1', '2', '3']);
  expect(terminal.lines.slice(-3)).toEqual(['#', '# Collective test concluded: barrier', '']);
});
