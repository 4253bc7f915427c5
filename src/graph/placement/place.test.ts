/** Tests: the device that a node gets, and the placements that are refused. */
import { describe, expect, it } from 'vitest';
import { identity, placeholder } from '../ops/array.ts';
import { assign, gather, variable } from '../ops/state.ts';
import { GraphBuilder } from '../structure/builder.ts';
import { DeviceSet } from './devices.ts';
import { place } from './place.ts';

const ps = ['/job:ps/task:0/device:CPU:0', '/job:ps/task:1/device:CPU:0'];
const worker = '/job:worker/task:0/device:CPU:0';
const devices = new DeviceSet([worker, ...ps, '/job:worker/task:0/device:GPU:0']);

function placed(build: (g: GraphBuilder) => void, defaultDevice?: string): Record<string, string> {
  const g = new GraphBuilder();
  build(g);
  const graph = g.finish();
  const placement = place(graph, devices, defaultDevice);
  return Object.fromEntries(graph.nodes.map((node) => [node.name, placement.get(node)?.name ?? '']));
}

describe('placement', () => {
  it('takes what nodes say, completed by the default device, then by what there is', () => {
    const names = placed((g) => {
      for (const [name, device] of Object.entries({ a: '', b: '/job:ps', c: '/job:ps/task:1', d: '/gpu:0', e: '/task:0' })) {
        placeholder(g, 'float32', [], { name, device });
      }
    });
    expect(names).toEqual({ a: worker, b: ps[0], c: ps[1], d: '/job:worker/task:0/device:GPU:0', e: worker });
    expect(placed((g) => placeholder(g, 'float32', [], { name: 'a' }), '/job:ps/task:1')).toEqual({ a: ps[1] });
  });

  it('keeps colocated nodes together, and what changes a variable with it', () => {
    const names = placed((g) => {
      const table = variable(g, 'float32', [9], { name: 'table', device: ps[1] });
      const ids = placeholder(g, 'int32', [3], { name: 'ids' });
      const rows = gather(g, table, ids, { name: 'rows', colocateWith: table });
      identity(g, rows, { name: 'read' });
      assign(g, table, table, { name: 'set' });
    });
    expect(names).toEqual({ table: ps[1], ids: worker, rows: ps[1], read: worker, set: ps[1] });
  });

  it('puts colocation before the device of the scope around it, and what changes a variable as well', () => {
    const names = placed((g) => {
      const table = variable(g, 'float32', [9], { name: 'table', device: ps[1] });
      g.withDevice(worker, () => {
        const ids = placeholder(g, 'int32', [3], { name: 'ids' });
        gather(g, table, ids, { name: 'rows', colocateWith: table });
        const set = assign(g, table, table, { name: 'set' });
        identity(g, set, { name: 'beside', colocateWith: set });
        g.withDevice('/job:ps/task:0', () => identity(g, ids, { name: 'inner', colocateWith: ids }));
      });
    });
    expect(names).toEqual({ table: ps[1], ids: worker, rows: ps[1], set: ps[1], beside: ps[1], inner: worker });
  });

  it.each<[string, (g: GraphBuilder) => unknown, RegExp]>([
    [
      'devices that do not exist',
      (g) => placeholder(g, 'float32', [], { name: 'x', device: '/job:ps/task:7/cpu:0' }),
      /Placeholder 'x': device \/job:ps\/task:7\/device:CPU:0 does not exist; did you mean \/job:ps\/task:[01]\/device:CPU:0\? devices: /,
    ],
    [
      'colocated nodes that want different ones',
      (g) =>
        placeholder(g, 'float32', [], {
          name: 'y',
          device: ps[1],
          colocateWith: placeholder(g, 'float32', [], { name: 'x', device: ps[0] }),
        }),
      /Placeholder 'y' is on \/job:ps\/task:1\S+, but is colocated with Placeholder 'x' on \/job:ps\/task:0/,
    ],
    [
      'changing a variable of another device',
      (g) => {
        const v = variable(g, 'float32', [], { name: 'v', device: ps[0] });
        assign(g, v, v, { name: 'set', device: worker });
      },
      /Assign 'set' is on \/job:worker.*, but is colocated with VariableV2 'v'/,
    ],
  ])('refuses %s', (_, build, message) => {
    expect(() => placed(build)).toThrow(expect.objectContaining({ code: 'usage', message: expect.stringMatching(message) as string }));
  });

  it('refuses devices that are partial, there twice, or none', () => {
    expect(() => new DeviceSet(['/job:ps'])).toThrow(/must say job, task, type and number/);
    expect(() => new DeviceSet([worker, '/job:worker/task:0/cpu:0'])).toThrow(/there twice/);
    expect(() => new DeviceSet([])).toThrow(/at least one/);
    expect(() => placed(() => {}, '/job:chief')).toThrow(/default device '\/job:chief' does not exist/);
  });
});
