/** The documentation against the sources: generated pages are fresh, links lead somewhere, nothing is left out. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';
import { describe, expect, it } from 'vitest';
import { errorCodes } from '../../src/base/errors.ts';
import { settingDefinitions, settingKeys } from '../../src/base/settings/settings.ts';
import { formatTable, parseSelection, selectionTable } from '../../src/collectives/select.ts';
import { benchCommand } from '../../src/tools/cli/commands/bench.ts';
import { gradientRules } from '../../src/graph/gradients/rules.ts';
import { operations } from '../../src/graph/ops/registry.ts';
import { generatedPages, replacePart } from '../../scripts/generated-pages.ts';
import { isProduction } from '../../scripts/house-rules.ts';
import { pageSources, readSources, readText, repositoryRoot } from '../../scripts/repository.ts';

const docs = readdirSync(join(repositoryRoot, 'docs')).filter((name) => name.endsWith('.md'));
const pages = ['README.md', 'ARCHITECTURE.md', 'CONTRIBUTING.md', ...docs.map((name) => `docs/${name}`)];

describe('generated pages', () => {
  it.each(generatedPages(pageSources()).map(({ path, text }) => [path, text]))('%s is the same as npm run docs writes', (path, text) => {
    expect(readText(path)).toBe(text);
  });

  it('describe every setting', () => {
    const page = readText('docs/settings.md');
    for (const key of settingKeys) expect(page).toContain(`### \`${settingDefinitions[key].name}\``);
  });

  it('give an example of rules that is one', () => {
    const [, example = ''] = /`(all-reduce:[^`]+)`/.exec(settingDefinitions.algorithms.description) ?? [];
    expect(parseSelection(example).map(({ collective }) => collective)).toEqual(['all-reduce', 'all-reduce', 'broadcast']);
  });

  it('show the table that chooses algorithms', () => {
    expect(readText('docs/algorithms.md')).toContain(formatTable(selectionTable()));
  });

  it('are replaced between their marks only', () => {
    const text = 'a\n<!-- x:begin, by a script -->\nold\n<!-- x:end -->\nb $1\n';
    expect(replacePart(text, 'x', 'new $&')).toBe('a\n<!-- x:begin, by a script -->\nnew $&\n<!-- x:end -->\nb $1\n');
    expect(() => replacePart(text, 'y', 'new')).toThrow(/y:begin/);
  });
});

describe('pages', () => {
  it('lead to files that exist', () => {
    const broken = pages.flatMap((page) => linksOf(page).filter((target) => !existsSync(join(repositoryRoot, target))));
    expect(broken).toEqual([]);
  });

  it('lead to files that the package has, results of measurements apart', () => {
    const packing = spawnSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: repositoryRoot, encoding: 'utf8' });
    const [{ files }] = JSON.parse(packing.stdout) as [{ files: { path: string }[] }];
    const packed = files.map(({ path }) => path);
    expect(packed).toEqual(expect.arrayContaining(['README.md', 'docs/README.md', 'dist/index.js']));
    const isPacked = (target: string): boolean =>
      packed.some((path) => path === target || path.startsWith(`${target.replace(/\/$/, '')}/`));
    const broken = pages.flatMap((page) =>
      linksOf(page)
        .filter((target) => !isPacked(target) && !target.startsWith('bench/results/'))
        .map((target) => `${page}: ${target}`),
    );
    expect(broken).toEqual([]);
  });

  it('name files that exist in ARCHITECTURE.md', () => {
    const paragraph = /The public interfaces are ([\s\S]*?)\n\n/.exec(readText('ARCHITECTURE.md'))?.[1] ?? '';
    const named = [...paragraph.matchAll(/`([\w./-]+\.ts)`/g)].map(([, path]) => (path.startsWith('src/') ? path : `src/${path}`));
    expect(named.length).toBeGreaterThan(10);
    expect(named.filter((path) => !existsSync(join(repositoryRoot, path)))).toEqual([]);
  });

  it('give a map of every folder: each file says at its top what it is for', () => {
    const silent = readSources().filter(({ path, text }) => isProduction(path) && !/^(#!.*\n)?\/\*\*/.test(text));
    expect(silent.map(({ path }) => path)).toEqual([]);
  });

  it('name files that exist in CONTRIBUTING.md', () => {
    const named = [...readText('CONTRIBUTING.md').matchAll(/`((?:src|native|test|docs|scripts)\/[\w./-]+)`/g)].map(([, path]) => path);
    expect(named.length).toBeGreaterThan(20);
    expect(named.filter((path) => !existsSync(join(repositoryRoot, path)))).toEqual([]);
  });

  it('are all in the index', () => {
    const listed = linksOf('docs/README.md');
    expect(docs.map((name) => `docs/${name}`).filter((page) => page !== 'docs/README.md' && !listed.includes(page))).toEqual([]);
  });

  it('explain every error code', () => {
    const headings = [...readText('docs/errors.md').matchAll(/^## `(.+)`$/gm)].map(([, code]) => code);
    expect(headings.toSorted()).toEqual(errorCodes.toSorted());
  });

  it('name only commands that package.json has', () => {
    const { scripts } = JSON.parse(readText('package.json')) as { scripts: Record<string, string> };
    const named = pages.flatMap((page) => [...readText(page).matchAll(/npm run ([a-z0-9:-]+)/g)].map(([, name]) => name));
    expect(named.filter((name) => scripts[name] === undefined)).toEqual([]);
  });
});

describe('the page about graphs', () => {
  it('gives a reason for every operation that has no gradient', () => {
    const [table] = /\| no gradient \| reason \|\n\|[-|]+\|\n(?:\|.*\n)+/.exec(readText('docs/graph.md'))!;
    const listed = table
      .split('\n')
      .slice(2, -1)
      .flatMap((line) => line.split('|')[1].trim().split(/[,;] /));
    const without = operations.map(({ name }) => name).filter((name) => !Object.hasOwn(gradientRules, name));
    expect(listed.toSorted()).toEqual(without.toSorted());
  });
});

it('the table of options of the benchmark has those that the command has', () => {
  const { options } = benchCommand(() => undefined);
  const [table] = readText('docs/benchmarks.md').split('| flag | meaning | default |')[1].split('\n\n');
  const described = table.split('\n').flatMap((line) => [...(line.split('|')[1] ?? '').matchAll(/(?<![\w-])--?[a-z][\w-]*/g)].map(String));
  const flags = options.map(({ short, long }) => [short, long].filter((flag) => flag !== undefined));
  expect(described.filter((flag) => !flags.flat().includes(flag))).toEqual([]);
  expect(flags.filter((spellings) => !spellings.some((flag) => described.includes(flag)))).toEqual([]);
});

describe('troubleshooting', () => {
  it('quotes the messages of the sources', () => {
    const said = readSources()
      .filter(({ path }) => /^(src|scripts\/install)/.test(path))
      .map(({ text }) => text)
      .join('\n');
    const rows = readText('docs/troubleshooting.md').matchAll(/^\| (?!what you see|-)(.+?) \|/gm);
    const quotes = [...rows].flatMap(([, symptom]) => [...symptom.matchAll(/`([^`]+)`/g)].map(([, quote]) => quote));
    const fragments = quotes.flatMap((quote) => quote.split(/…|'[^']*'|\d[\d.]*|\w+\.[jt]s|[A-Z_]{4,}|tcp/)).map((each) => each.trim());
    expect(fragments.filter((each) => each.length > 4).length).toBeGreaterThan(20);
    expect(fragments.filter((each) => each.length > 4 && !said.includes(each))).toEqual([]);
  });
});

describe('the ten lines of the README', () => {
  const example = 'examples/ten-lines.ts';

  it('are a program of the repository, which is compiled with everything else', () => {
    expect(codeOf('README.md')).toBe(readText(example));
  });

  it('run as they are, as a world of one', () => {
    const tsx = join(repositoryRoot, 'node_modules/tsx/dist/cli.mjs');
    const { PATH, HOME, SHOAL_NATIVE } = process.env;
    const { stdout, stderr, status } = spawnSync(process.execPath, [tsx, example], {
      cwd: repositoryRoot,
      env: { PATH, HOME, SHOAL_NATIVE },
      encoding: 'utf8',
    });
    expect({ stdout, stderr, status }).toEqual({ stdout: 'rank 0 of 1: 1\n', stderr: '', status: 0 });
  });
});

/** The first TypeScript block of a page. */
function codeOf(page: string): string | undefined {
  return /```ts\n([\s\S]*?)```/.exec(readText(page))?.[1];
}

/** Relative targets of a page's links, as paths in the repository. */
function linksOf(page: string): string[] {
  return [...readText(page).matchAll(/\]\(([^)#\s]+)(?:#[^)]*)?\)/g)]
    .map(([, target]) => target)
    .filter((target) => !target.includes(':'))
    .map((target) => normalize(join(dirname(page), target)));
}
