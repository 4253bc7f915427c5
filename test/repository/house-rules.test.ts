/** The house rules hold for every source, and each rule can fail. */
import { spawnSync } from 'node:child_process';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { countedLines } from '../../scripts/counted-lines.ts';
import { checkSources, formatViolation, type LayerTable, type SourceFile } from '../../scripts/house-rules.ts';
import { readLayerTable, readSources } from '../../scripts/repository.ts';

const table: LayerTable = {
  layers: [
    { folder: 'base', rank: 0, purpose: '', linesMax: 50 },
    { folder: 'plan', rank: 1, purpose: '', linesMax: 50, pure: true },
    { folder: 'fabric', rank: 1, purpose: '', linesMax: 50 },
    { folder: 'group', rank: 2, purpose: '', linesMax: 50 },
  ],
  registries: [{ folder: 'src/group/algorithms', file: 'src/group/registry.ts' }],
};

const skeleton: Readonly<Record<string, string>> = {
  'src/base/clock.ts': 'export const now = () => Date.now(); setTimeout(now, 1);',
  'src/plan/ir.ts': "import '../base/clock.ts';",
  'src/fabric/tcp.ts': "import { connect } from 'node:net';\nexport { connect };",
  'src/group/registry.ts': "import './algorithms/ring.ts';",
  'src/group/algorithms/ring.ts': "import '../../plan/ir.ts';",
  'src/group/group.test.ts': "import './registry.ts';",
  'src/index.ts': "export * from './group/registry.ts';",
};

/** Violations in the skeleton with some files changed. `// what it is` is put in front of each. */
function check(changes: Readonly<Record<string, string>>): string[] {
  const files: SourceFile[] = Object.entries({ ...skeleton, ...changes }).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));
  return checkSources(files, table).map(formatViolation);
}

describe('the house rules', () => {
  it('hold for every source of the repository', () => {
    const sources = readSources();
    expect(sources.length).toBeGreaterThan(50);
    expect(checkSources(sources, readLayerTable()).map(formatViolation)).toEqual([]);
  });

  it('accept the skeleton that the cases below break', () => {
    expect(check({})).toEqual([]);
  });

  it.each<[rule: string, path: string, text: string]>([
    ['time', 'src/group/a.ts', 'export const t = new Date();'],
    ['native-loader', 'src/group/a.ts', "import load from 'node-gyp-build';\nexport { load };"],
    ['native-loader', 'src/group/a.ts', "export const file = 'build/Release/shoal.node';"],
    ['native-loader', 'src/group/a.ts', "process.dlopen(module, 'x');"],
    ['no-global-state', 'src/group/a.ts', 'let worlds = 0;\nexport const count = () => worlds++;'],
    ['no-global-state', 'src/group/a.ts', 'export let worlds = 0;'],
    ['file-name', 'src/group/group-helper.ts', ''],
    ['registries', 'src/group/algorithms/dead.ts', 'export const dead = 1;'],
  ])('%s: %s: %s', (rule, path, text) => {
    const found = check({ [path]: text });
    expect(found).toHaveLength(1);
    expect(found[0]).toContain(`${path}:`);
    expect(found[0]).toContain(`: ${rule}: `);
  });

  it('let a file out of a registry only by name, and only while it exists', () => {
    const files = Object.entries({ ...skeleton, 'src/group/algorithms/odd.ts': '' }).map(([path, text]) => ({
      path,
      text: `// what it is\n${text}`,
    }));
    const excepting = (path: string): LayerTable => ({ ...table, registries: [{ ...table.registries[0], except: { [path]: 'why' } }] });
    expect(checkSources(files, excepting('src/group/algorithms/odd.ts'))).toEqual([]);
    expect(checkSources(files, excepting('src/group/algorithms/gone.ts'))).toMatchObject([
      { rule: 'registries', message: 'src/group/algorithms/gone.ts does not exist' },
    ]);
  });

  it('want a header in every module', () => {
    const files = Object.entries(skeleton).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));
    const found = checkSources([...files, { path: 'src/group/a.ts', text: 'export const a = 1;' }], table);
    expect(found).toMatchObject([{ path: 'src/group/a.ts', line: 1, rule: 'header' }]);
  });

  it('let names that only look like banned ones pass', () => {
    expect(
      check({
        'src/group/a.ts': "export const a = { setTimeout: 1, now: 'Date.now' }.setTimeout; export const at = new Date(0); // Date.now()",
      }),
    ).toEqual([]);
  });

  it('find files that import each other, by types too and by way of others', () => {
    const circle = {
      'src/group/a.ts': "import type { B } from './b.ts';",
      'src/group/b.ts': "import './c.ts';",
      'src/group/c.ts': "import './a.ts';",
    };
    expect(check(circle)).toEqual([
      'src/group/c.ts:2: circles: imports itself: src/group/a.ts → src/group/b.ts → src/group/c.ts → src/group/a.ts',
    ]);
  });

  it('want rooms in a folder of many files, tests apart', () => {
    const many = (name: (n: number) => string): Record<string, string> =>
      Object.fromEntries(Array.from({ length: 16 }, (_, n) => [`src/fabric/${name(n)}`, '']));
    expect(check(many((n) => `a${n}.test.ts`))).toEqual([]);
    expect(check(many((n) => `a${n}.ts`))).toEqual(['layers.json:1: rooms: src/fabric has 17 files; at most 16, then it has rooms']);
  });

  it('size: a layer stays below its ceiling, and the ceiling follows it down', () => {
    const many = Array.from({ length: 300 }, (_, k) => `export const a${k} = ${k}; // the number`).join('\n');
    const ceiling = (linesMax: number): LayerTable => ({ ...table, layers: table.layers.map((layer) => ({ ...layer, linesMax })) });
    const files = Object.entries({ ...skeleton, 'src/group/a.ts': many }).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));
    expect(checkSources(files, table).map(formatViolation)).toEqual([
      'layers.json:1: size: src/group has 300 counted lines, its ceiling is 50: make it smaller',
    ]);
    expect(checkSources(files, ceiling(501)).map(({ message }) => message)).toContain(
      'src/group has 300 counted lines, its ceiling is 501: npx tsx scripts/count-lines.ts --lower',
    );
  });

  describe('words', () => {
    const comments = (bad: number, good: number): string =>
      ['/** What it is. */\n'.repeat(bad), '/** Bytes in flight per link. */\n'.repeat(good)].join('');
    const found = (text: string): string[] => checkSources([...files, { path: 'src/group/a.ts', text }], table).map(formatViolation);
    const files = Object.entries(skeleton).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));

    it('want a subject in comments, but for one in fifty of a folder', () => {
      const inGroup = 3;
      expect(found(comments(1, 49 - inGroup))).toEqual([]);
      expect(found(comments(1, 48 - inGroup))).toEqual([
        'src/group/a.ts:1: words: "What it is." opens without a subject, like 1 of 49 in src/group (at most 2 %): say what it is',
      ]);
    });

    it.each([
      'Of an event loop over the sockets of a wire.',
      'What the worker fed went as part of the call',
      'Who waits until this rank can leave is told',
      'For the whole world',
    ])('refuse "%s"', (comment) => {
      expect(found(`/** ${comment} */`)).toHaveLength(1);
      expect(found(`// Bytes in flight.\nexport const a = 1;\n  // ${comment}\n`)).toHaveLength(1);
    });

    it.each([
      'By default, a call waits for all.',
      'In place.',
      'For each rank, the bytes it sent.',
      'As soon as the last rank leaves, the port is closed.',
      'Bytes in flight per link.\n// Of each link, that is, on a line of its own.',
    ])('let "%s" pass', (comment) => expect(found(`// ${comment}`)).toEqual([]));
  });

  it('count lines without comments, blank lines and imports', () => {
    const text =
      "/** What it is. */\nimport {\n  a,\n} from 'a';\n\nexport const b = /* the sum */ a + // of two\n  1; /* and\n*/ export { a };\n";
    expect(countedLines({ path: 'src/a.ts', text })).toBe(3);
  });
});

describe('the linter', () => {
  const cases: readonly [rule: string, path: string, text: string][] = [
    ['no-restricted-properties', 'src/group/a.ts', 'export const t = Date.now();'],
    ['no-restricted-properties', 'src/group/b.ts', "export const t = Date['now']();"],
    ['no-restricted-properties', 'src/group/c.ts', 'export const t = globalThis.performance.now();'],
    ['no-restricted-properties', 'src/group/d.ts', 'export const { random } = Math;'],
    ['no-restricted-globals', 'src/group/e.ts', 'export const f = () => setTimeout(() => {}, 5);'],
    ['no-restricted-globals', 'src/group/f.test.ts', 'export const later = setInterval;'],
    ['no-restricted-imports', 'src/group/g.ts', "export { setTimeout } from 'node:timers/promises';"],
    ['no-warning-comments', 'src/group/h.ts', '/* FIXME: later */'],
    ['max-lines', 'src/group/i.ts', '\n// text'.repeat(700)],
    ['filename-case', 'src/group/processGroup.ts', ''],
    ['no-console', 'src/group/k.ts', 'console.log(1);'],
  ];
  const allowed = {
    'src/base/clock.ts': 'export const now = () => Date.now(); setTimeout(now, 1);',
    'src/group/l.ts': "export const a = { setTimeout: 1, now: 'Date.now' }.setTimeout; export const at = new Date(0); // Date.now()",
    'src/tools/cli/main.ts': 'console.log(1);',
  };

  it('refuses time, chance, leftovers, long files and odd names', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'shoal-lint-'));
    await cp('.oxlintrc.json', join(folder, '.oxlintrc.json'));
    for (const [path, text] of [...Object.entries(allowed), ...cases.map(([, path, text]) => [path, text] as const)]) {
      await mkdir(dirname(join(folder, path)), { recursive: true });
      await writeFile(join(folder, path), `export const probe = 1;\n${text}\n`);
    }
    const { stdout } = spawnSync(resolve('node_modules/.bin/oxlint'), ['-f', 'json'], { cwd: folder, encoding: 'utf8' });
    await rm(folder, { recursive: true });
    const { diagnostics } = JSON.parse(stdout) as { diagnostics: readonly { readonly code: string; readonly filename: string }[] };
    const found = diagnostics.map(({ code, filename }) => `${filename}: ${code.replace(/^.*\(|\)$/g, '')}`);
    expect([...new Set(found)].toSorted()).toEqual(cases.map(([rule, path]) => `${path}: ${rule}`).toSorted());
  });
});
