/** Output, pictures and refusals of `shoal graph`. */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../../base/testing/temporary-folder.ts';
import { placeholder } from '../../../graph/ops/array.ts';
import { add, addN, neg } from '../../../graph/ops/math.ts';
import { GraphBuilder } from '../../../graph/structure/builder.ts';
import { encodeGraph } from '../../../graph/wire/graphs.ts';
import { runGraph, type GraphFlags } from './run-graph.ts';

const folder = temporaryFolder('graph', afterAll);
let file: string;
const flags: GraphFlags = { target: [], feed: [], policy: 'source-wave', boxes: 300 };

beforeAll(() => {
  file = join(folder, 'model.graph');
  const g = new GraphBuilder();
  const xs = [0, 1, 2].map((k) =>
    neg(g, placeholder(g, 'float32', [], { name: `x_${k}`, device: '/job:ps/task:0' }), { device: '/job:ps/task:0' }),
  );
  const total = addN(g, xs, { device: '/job:worker', name: 'total' });
  add(g, total, total, { name: 'twice', device: '/job:worker' });
  writeFileSync(file, encodeGraph(g.finish()));
});

describe('shoal graph', () => {
  it('says how many requests fusion saves, and draws both', () => {
    const out = join(folder, 'page.html');
    expect(runGraph(file, { ...flags, out })).toBe(
      `before fusion   14 nodes on 2 devices, 3 transfers by 3 requests\nafter fusion    12 nodes on 2 devices, 3 transfers by 1 requests; groups of 3\n${out}\n`,
    );
    expect(JSON.parse(runGraph(file, { ...flags, json: true }))).toEqual({
      version: 1,
      before: { nodes: 14, devices: 2, transfers: 3, requests: 3, groups: [], unfused: [] },
      after: { nodes: 12, devices: 2, transfers: 3, requests: 1, groups: [3], unfused: [] },
    });
    const page = readFileSync(out, 'utf8');
    expect(page.match(/<svg /g)).toHaveLength(2);
    expect(page).toContain('_fuse_recv_0');
    runGraph(file, { ...flags, out: join(folder, 'after.svg'), policy: 'dest-wave', target: ['total'] });
    expect(readFileSync(join(folder, 'after.svg'), 'utf8')).toMatch(/^<svg /);
  });

  it('says which receives are not fused, and why', () => {
    const g = new GraphBuilder();
    const [ps, worker] = ['/job:ps/task:0/device:CPU:0', '/job:worker/task:0/device:CPU:0'];
    const xs = Array.from({ length: 12 }, () => undefined).reduce(
      (chain) => [...chain, neg(g, chain.at(-1)!, { device: ps })],
      [placeholder(g, 'float32', [], { name: 'x', device: ps })],
    );
    addN(g, xs.slice(1), { device: worker });
    const path = join(folder, 'chain.graph');
    writeFileSync(path, encodeGraph(g.finish()));
    const lines = runGraph(path, flags).trimEnd().split('\n');
    expect(lines.slice(1, 3)).toEqual([
      'after fusion    38 nodes on 2 devices, 12 transfers by 12 requests',
      `not fused       Neg:0, ${ps} to ${worker}: no other dense tensor of wave 1 (source-wave) goes the same way`,
    ]);
    expect(lines.slice(11)).toEqual([expect.stringMatching(/^not fused {7}Neg_9:0/), 'not fused       and 2 more: --json lists all']);
    const { after } = JSON.parse(runGraph(path, { ...flags, json: true })) as { after: { unfused: { tensor: string }[] } };
    expect(after.unfused.map(({ tensor }) => tensor)).toHaveLength(12);
  });

  it('refuses what it cannot draw before it writes anything', () => {
    const out = join(folder, 'none.html');
    expect(() => runGraph(file, { ...flags, out, policy: 'wave' })).toThrow(/there are source-wave and dest-wave/);
    expect(() => runGraph(file, { ...flags, out, target: ['totel'] })).toThrow(/no node 'totel'; did you mean 'total'/);
    expect(() => runGraph(file, { ...flags, out: 'x.png' })).toThrow(/must end in .html or .svg/);
    expect(() => runGraph(join(folder, 'nothing'), { ...flags, out })).toThrow(expect.objectContaining({ code: 'system' }));
    writeFileSync(join(folder, 'other'), 'hello, this is no graph');
    expect(() => runGraph(join(folder, 'other'), { ...flags, out })).toThrow(
      expect.objectContaining({
        code: 'protocol',
        message: expect.stringMatching(/other is no graph that encodeGraph has written: /) as string,
      }),
    );
    expect(() => runGraph(file, { ...flags, out: join(file, 'page.html') })).toThrow(expect.objectContaining({ code: 'system' }));
    expect(existsSync(out)).toBe(false);
  });
});
