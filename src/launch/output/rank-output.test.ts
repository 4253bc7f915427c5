import { PassThrough, Writable } from 'node:stream';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ConsoleSink } from './console-sink.ts';
import { RankOutput, Tail } from './rank-output.ts';

describe('Tail', () => {
  it('keeps exactly the end', () => {
    fc.assert(
      fc.property(
        fc.array(fc.string({ unit: 'binary-ascii', maxLength: 30 }), { maxLength: 400 }),
        fc.integer({ min: 0, max: 50 }),
        (chunks, max) => {
          const tail = new Tail(max);
          for (const chunk of chunks) tail.push(Buffer.from(chunk));
          const all = chunks.join('');
          const kept = max === 0 ? '' : all.slice(-max);
          expect(tail.read()).toBe(kept);
        },
      ),
    );
  });
});

describe('RankOutput', () => {
  it('stops reading from the rank while the console is slow, and goes on after', async () => {
    const written: string[] = [];
    let proceed: (() => void) | undefined;
    const slow = new Writable({
      highWaterMark: 10,
      write(chunk: Buffer, _, done) {
        written.push(chunk.toString());
        proceed = done;
      },
    });
    const source = new PassThrough();
    const output = new RankOutput(source, {
      console: { sink: new ConsoleSink(slow), prefix: '> ' },
      file: undefined,
      tailBytes: 100,
      onFileError: () => undefined,
    });
    source.write('a line that is longer than the high-water mark\n');
    await new Promise((resolve) => setImmediate(resolve));
    expect(source.isPaused()).toBe(true);
    source.end('the last one');
    await new Promise((resolve) => setImmediate(resolve));
    expect(written).toEqual(['> a line that is longer than the high-water mark\n']);
    proceed!();
    await output.finished;
    proceed!();
    expect(written[1]).toBe('> the last one\n');
    expect(output.tail()).toMatch(/mark\nthe last one$/);
  });

  it('does not wait for a console that is gone', async () => {
    const gone = new Writable({ write: (_chunk, _encoding, done) => done(new Error('EPIPE')) });
    const sink = new ConsoleSink(gone);
    const source = new PassThrough();
    const output = new RankOutput(source, { console: { sink, prefix: '' }, file: undefined, tailBytes: 100, onFileError: () => undefined });
    source.write('one\n');
    await new Promise((resolve) => setImmediate(resolve));
    source.end('two\n');
    await output.finished;
    expect(output.tail()).toBe('one\ntwo\n');
  });

  it('reports a file that cannot be written and goes on', async () => {
    const errors: Error[] = [];
    const source = new PassThrough();
    const output = new RankOutput(source, {
      console: undefined,
      file: '/dev/null/no.log',
      tailBytes: 100,
      onFileError: (error) => errors.push(error),
    });
    source.end('text');
    await output.finished;
    expect(errors).toHaveLength(1);
    expect(output.tail()).toBe('text');
  });
});
