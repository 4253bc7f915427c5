import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readUncaught, UncaughtSplitter } from './uncaught-error.ts';

const mark = '\0uncaught\0';

describe('the mark', () => {
  it('separates what is said from what Node.js writes, wherever chunks end', () => {
    const text = fc.string({ unit: fc.constantFrom('a', '\0', 'u', '\0unc', '\n'), maxLength: 20 });
    fc.assert(
      fc.property(text, fc.option(text, { nil: undefined }), fc.array(fc.nat(40)), (said, behind, cuts) => {
        fc.pre(!said.includes(mark));
        const whole = Buffer.from(behind === undefined ? said : said + mark + behind);
        const splitter = new UncaughtSplitter();
        const parts = { said: '', behind: '' };
        let from = 0;
        for (const to of [...cuts.toSorted((a, b) => a - b), whole.length].map((cut) => Math.min(cut, whole.length))) {
          const part = splitter.push(whole.subarray(from, to));
          parts.said += part.said.toString();
          parts.behind += part.behind.toString();
          from = to;
        }
        parts.said += splitter.end().toString();
        expect(parts).toEqual({ said, behind: behind ?? '' });
      }),
    );
  });
});

describe('an uncaught error', () => {
  it('is shown where the script threw it, without frames of others', () => {
    const text = `file:///home/me/train.js:3
throw new TypeError('data.csv has\\nno column');
      ^

TypeError: data.csv has
no column
    at load (file:///home/me/train.js:3:7)
    at read (file:///home/me/node_modules/reader/index.js:1:1)
    at ModuleJob.run (node:internal/modules/esm/module_job:325:25) {
  code: 'X',
  [cause]: Error: inner
      at file:///home/me/train.js:1:46
}

Node.js v20.20.2
`;
    expect(readUncaught(`${text}what a child says`)).toEqual({
      error: 'TypeError: data.csv has',
      details: [
        'file:///home/me/train.js:3',
        "throw new TypeError('data.csv has\\nno column');",
        '      ^',
        'no column',
        "  code: 'X'",
        '  [cause]: Error: inner',
        '    at load (file:///home/me/train.js:3:7)',
      ],
      rest: 'what a child says',
    });
  });

  it.each([
    [
      'node:internal/modules/run_main:123\n    triggerUncaughtException(\n    ^\n\nShoalError: lost\n    at shoal:internal {\n  peer: 1\n}',
      'ShoalError: lost',
      [],
    ],
    ['\nnode:internal/process:1\n  x\n  ^\ntext\n(Use `node --trace-uncaught ...` to show where the exception was thrown)', 'text', []],
    ['<anonymous_script>:1\n{\n\nSyntaxError: bad\n    at JSON.parse (<anonymous>)', 'SyntaxError: bad', []],
    [
      '/home/me/a.mjs:1\nimport {x} from "y"\n        ^\nSyntaxError: no export',
      'SyntaxError: no export',
      ['/home/me/a.mjs:1', 'import {x} from "y"', '        ^'],
    ],
    [`/home/me/bundle.js:1\n${'x'.repeat(300)}\n^\n\nError: long`, 'Error: long', []],
  ])('%#', (text, error, details) => expect(readUncaught(`${text}\n\nNode.js v22.1.0\n`)).toEqual({ error, details, rest: '' }));

  it('is none that is not all there', () => expect(readUncaught('/home/me/a.mjs:1\nthrow 1;\n^\n\nError: x\n')).toBeUndefined());
});
