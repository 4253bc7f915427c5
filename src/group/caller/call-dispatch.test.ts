import { expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { CallDispatch, type CallDispatchOptions, type CheckedCall } from './call-dispatch.ts';

/** A dispatch to the comm thread that only writes down what happens; `room`: for staging. */
function createDispatch(room: boolean): { dispatch: CallDispatch; told: string[]; called: Float64Array } {
  const told: string[] = [];
  const called = new Float64Array(1);
  const region = { id: 1, buffer: new SharedArrayBuffer(64) };
  const doubles = {
    spec: { id: 1, name: 'g', rank: 0, globalRanks: [0, 1] },
    path: { fast: { called } },
    world: {
      client: {
        start: ({ sequence }: { sequence: number }) => told.push(`call ${sequence} of ${called[0]}`),
        tellExhaustion: (_: number, thrown: unknown) => thrown,
      },
      board: { tally: () => undefined },
      memory: {
        blockAt: () => undefined,
        owns: () => false,
        allocate: () => {
          told.push(`stages, having called ${called[0]}`);
          if (!room) throw new ShoalError('out-of-memory', 'no room');
          return { region, offset: 0 };
        },
      },
    },
  };
  return { dispatch: new CallDispatch(doubles as unknown as CallDispatchOptions), told, called };
}

const value = new Float32Array(4);
const checked: CheckedCall = {
  call: { kind: 'all-reduce', dtype: 'float32', count: 4, op: 'sum' },
  uses: [{ name: 'data', operand: { value, dtype: 'float32', count: 4 }, reads: true, writes: true }],
  options: {},
  timeoutMs: 1000,
};

it('a call is announced before its arguments are copied', () => {
  const { dispatch, told } = createDispatch(true);
  dispatch.start(checked);
  dispatch.start(checked);
  expect(told).toEqual(['stages, having called 1', 'call 0 of 1', 'stages, having called 2', 'call 1 of 2']);
});

it('a call for which there is no room has not been made', () => {
  const { dispatch, told, called } = createDispatch(false);
  expect(() => dispatch.start(checked)).toThrow('no room');
  expect(told).toEqual(['stages, having called 1']);
  expect(called[0]).toBe(0);
});
