/** Imports go down, whatever their form: the rule itself is tested here, the repository in house-rules.test.ts. */
import { describe, expect, it } from 'vitest';
import { checkSources, type LayerTable } from '../../scripts/house-rules.ts';
import { readLayerTable } from '../../scripts/repository.ts';

const table: LayerTable = {
  layers: [
    { folder: 'base', rank: 0, purpose: '', linesMax: 50 },
    { folder: 'plan', rank: 1, purpose: '', linesMax: 50, pure: true },
    { folder: 'fabric', rank: 1, purpose: '', linesMax: 50 },
    { folder: 'group', rank: 2, purpose: '', linesMax: 50 },
  ],
  registries: [],
};

const skeleton: Readonly<Record<string, string>> = {
  'src/base/errors.ts': '',
  'src/plan/ir.ts': "import type { E } from '../base/errors.ts';",
  'src/fabric/fabric.ts': '',
  'src/group/group.ts': "import '../fabric/fabric.ts'; import './worker.ts'; new Worker(new URL('./worker.js', import.meta.url));",
  'src/group/worker.ts': '',
  'src/group/group.test.ts': "import './testing/ranks.ts';",
  'src/group/testing/ranks.ts': '',
  'src/index.ts': "export * from './group/group.ts';",
};

function check(path: string, text: string): string[] {
  const files = Object.entries({ ...skeleton, [path]: text }).map(([one, body]) => ({ path: one, text: `// what it is\n${body}` }));
  return checkSources(files, table).map(({ rule, message }) => `${rule}: ${message}`);
}

describe('layers', () => {
  it('accept imports that go down', () => {
    expect(check('src/base/errors.ts', '')).toEqual([]);
  });

  it.each([
    ['up', 'src/base/errors.ts', "import '../group/group.ts';", 'base (rank 0) must not import group (rank 2)'],
    ['sideways', 'src/plan/ir.ts', "import '../fabric/fabric.ts';", 'plan (rank 1) must not import fabric (rank 1)'],
    ['types', 'src/base/errors.ts', "import type { G } from '../group/group.ts';", 'base (rank 0) must not import group'],
    ['re-exports', 'src/base/errors.ts', "export * from '../group/group.ts';", 'base (rank 0) must not import group'],
    ['dynamic imports', 'src/base/errors.ts', "await import('../group/group.ts');", 'base (rank 0) must not import group'],
    ['inline types', 'src/base/errors.ts', "export type G = import('../group/group.ts').G;", 'base (rank 0) must not import group'],
    ['threads', 'src/base/errors.ts', "new Worker(new URL('../group/worker.js', import.meta.url));", 'base (rank 0) must not import group'],
    [
      'threads from dist',
      'src/base/errors.ts',
      "new Worker(new URL('../../dist/group/worker.js', import.meta.url));",
      'base (rank 0) must not import group',
    ],
    ['tests', 'src/base/errors.test.ts', "import '../group/group.ts';", 'base (rank 0) must not import group'],
    ['the public face', 'src/group/group.ts', "import '../index.ts';", 'above all layers'],
    ['its own name', 'src/group/group.ts', "import { x } from 'shoal';", 'does not import itself'],
    ['pure layers and Node', 'src/plan/ir.ts', "import 'node:fs';", 'plan is pure and must not import node:fs'],
    ['pure layers and packages', 'src/plan/ir.ts', "import 'zod';", 'plan is pure and must not import zod'],
    ['test code in the product', 'src/group/group.ts', "import './testing/ranks.ts';", 'is test code and is not built'],
    ['files that are not there', 'src/group/group.ts', "import './gone.ts';", './gone.ts does not exist'],
    ['files outside src', 'src/group/group.ts', "import '../../scripts/x.ts';", 'is outside src'],
    ['folders without a rank', 'src/extra/a.ts', '', 'src/extra is not in the table'],
  ])('refuse %s', (_, path, text, expected) => {
    // A file that imports the public face imports itself as well, which is another violation.
    const found = check(path, text).filter((each) => !each.startsWith('circles: '));
    expect(found).toHaveLength(1);
    expect(found[0]).toMatch(/^layers: /);
    expect(found[0]).toContain(expected);
  });

  it('load an optional one where it is registered, by import() alone', () => {
    const optional = { folder: 'mpi', rank: 3, purpose: '', linesMax: 50, loadedBy: ['src/base/carriers.ts'] };
    const load = "export const load = () => import('../mpi/mpi.ts');";
    const found = (path: string, text: string): string[] => {
      const files = { ...skeleton, 'src/mpi/mpi.ts': "import '../group/group.ts';", [path]: text };
      const sources = Object.entries(files).map(([one, body]) => ({ path: one, text: `// what it is\n${body}` }));
      return checkSources(sources, { ...table, layers: [...table.layers, optional] }).map(({ message }) => message);
    };
    expect(found('src/base/carriers.ts', load)).toEqual([]);
    const refused = 'mpi is optional: only src/base/carriers.ts load it, by import()';
    expect(found('src/base/carriers.ts', "import '../mpi/mpi.ts';")).toEqual([refused]);
    expect(found('src/base/carriers.ts', "import type { M } from '../mpi/mpi.ts';")).toEqual([refused]);
    expect(found('src/group/carriers.ts', load)).toEqual([refused]);
  });

  it('refuse a table with a layer that does not exist', () => {
    const files = Object.entries(skeleton).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));
    const more = { ...table, layers: [...table.layers, { folder: 'ghost', rank: 9, purpose: '', linesMax: 50 }] };
    expect(checkSources(files, more)).toMatchObject([{ path: 'layers.json', message: 'src/ghost is in the table and does not exist' }]);
  });

  it('have unique folders, each with a purpose', () => {
    const { layers } = readLayerTable();
    expect(new Set(layers.map(({ folder }) => folder)).size).toBe(layers.length);
    for (const { purpose } of layers) expect(purpose).not.toBe('');
  });
});

describe('rooms', () => {
  const rooms = [
    { folder: 'api', purpose: '' },
    { folder: 'server', purpose: '' },
    { folder: 'server/state', purpose: '' },
  ];
  const withRooms: LayerTable = { layers: [{ folder: 'kv', rank: 0, purpose: '', linesMax: 50, rooms }], registries: [] };
  const house: Readonly<Record<string, string>> = {
    'src/kv/index.ts': "import './api/store.ts';",
    'src/kv/api/store.ts': "import '../server/core.ts';",
    'src/kv/server/core.ts': "import './state/slots.ts';",
    'src/kv/server/state/slots.ts': '',
  };
  const checkRooms = (changes: Readonly<Record<string, string>>): string[] =>
    checkSources(
      Object.entries({ ...house, ...changes }).map(([path, text]) => ({ path, text: `// what it is\n${text}` })),
      withRooms,
    ).map(({ rule, message }) => `${rule}: ${message}`);

  it('import each other downwards only', () => {
    expect(checkRooms({})).toEqual([]);
    expect(checkRooms({ 'src/kv/server/state/a.ts': "import type { S } from '../../api/store.ts';" })).toEqual([
      'rooms: kv/server/state must not import api, which is above it',
    ]);
    expect(checkRooms({ 'src/kv/server/state/a.ts': "import '../core.ts';" })).toEqual([
      'rooms: kv/server/state must not import server, which is above it',
    ]);
    expect(checkRooms({ 'src/kv/other.ts': '', 'src/kv/api/a.ts': "import '../other.ts';" })).toEqual([
      'rooms: kv/api must not import a file beside the rooms, which is above it',
    ]);
  });

  it('are all in the table, and all of the table are there', () => {
    expect(checkRooms({ 'src/kv/attic/a.ts': '' })).toEqual(['rooms: kv/attic is not in the table']);
    expect(checkRooms({ 'src/kv/server/state/slots.ts': '', 'src/kv/server/core.ts': '' })).toEqual([]);
    const table = { ...withRooms, layers: [{ ...withRooms.layers[0], rooms: [...rooms, { folder: 'cellar', purpose: '' }] }] };
    const files = Object.entries(house).map(([path, text]) => ({ path, text: `// what it is\n${text}` }));
    expect(checkSources(files, table).map(({ message }) => message)).toEqual(['kv/cellar is in the table and has no file']);
  });

  it('of one thread do not import those of the other, by whatever import, and shared ones import neither', () => {
    const threads = { api: 'caller', 'server/state.ts': 'comm', server: undefined } as const;
    const table: LayerTable = {
      layers: [
        {
          folder: 'kv',
          rank: 0,
          purpose: '',
          linesMax: 50,
          rooms: Object.entries(threads).map(([folder, thread]) => ({ folder, purpose: '', ...(thread && { thread }) })),
        },
      ],
      registries: [],
    };
    const check = (files: Readonly<Record<string, string>>): string[] =>
      checkSources(
        Object.entries({ 'src/kv/api/a.ts': '', 'src/kv/server/state.ts': '', 'src/kv/server/b.ts': '', ...files }).map(([path, text]) => ({
          path,
          text: `// what it is\n${text}`,
        })),
        table,
      ).map(({ rule, message }) => `${rule}: ${message}`);
    const both = "import './api/a.ts'; import './server/state.ts';";
    expect(check({ 'src/kv/index.ts': both, 'src/kv/api/c.ts': "import '../server/b.ts';" })).toEqual([]);
    for (const text of [
      "import '../server/state.ts';",
      "import type { S } from '../server/state.ts';",
      "await import('../server/state.ts');",
    ])
      expect(check({ 'src/kv/api/a.ts': text })).toEqual([
        'threads: code of the calling thread must not import ../server/state.ts, code of the comm thread',
      ]);
    expect(check({ 'src/kv/server/b.ts': "import './state.ts';" })).toContain(
      'threads: code of both threads must not import ./state.ts, code of the comm thread',
    );
    expect(check({ 'src/kv/api/a.test.ts': "import '../server/state.ts';" })).toEqual([]);
  });
});
