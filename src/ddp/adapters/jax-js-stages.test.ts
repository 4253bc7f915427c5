/** A model in stages, in a group of one whose calls are recorded: when it gives its gradients, and what each stage waits for. */
import { defaultDevice, init, numpy as np } from '@jax-js/jax';
import { beforeAll, describe, expect, it } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import type { ScheduledGroup, Work } from '../../group/caller/types.ts';
import { LocalWorld } from '../testing/local-world.ts';
import { distributeStages, type Stage } from './jax-js-stages.ts';

beforeAll(async () => {
  await init('wasm');
  defaultDevice('wasm');
});

type Own = { w: np.Array; b: np.Array };

function stages(): Stage<Own>[] {
  const parameters = (): Own => ({ w: np.ones([2, 2]), b: np.ones([2]) });
  const forward: Stage<Own>['forward'] = ({ w, b }, x) => np.matmul(x, w).add(b);
  const hidden = ['first', 'second'].map((name) => ({ name, parameters: parameters(), forward }));
  return [...hidden, { name: 'last', parameters: parameters(), forward: (own, x, y) => np.square(forward(own, x).sub(y)).sum() }];
}

/** A group of one that counts as scheduled for the model, and writes its calls into `log`. */
function recorded(log: string[], isLost: () => boolean = () => false): ScheduledGroup {
  const [alone] = new LocalWorld(1).groups;
  const own = (name: string | undefined): string => (name ?? '').replace(/^ddp\//, '');
  const group = {
    rank: 0,
    size: 1,
    tensor: alone.tensor.bind(alone),
    release: alone.release.bind(alone),
    broadcast: alone.broadcast.bind(alone),
    allGather: alone.allGather.bind(alone),
    setScheduling: () => undefined,
    allReduce: (_: unknown, options: { name?: string; priority?: number }): Work => {
      log.push(`all-reduce ${own(options.name)} ${options.priority}`);
      const waitSync = (): void => {
        if (isLost()) throw new ShoalError('peer-lost', 'rank 1 died');
        log.push(`wait ${own(options.name)}`);
      };
      return { done: true, waitSync } as unknown as Work;
    },
    span: <T>(name: string, fn: () => T): T => {
      log.push(`${name} {`);
      const result = fn();
      log.push('}');
      return result;
    },
  };
  return group as unknown as ScheduledGroup;
}

const batch = (): [np.Array, np.Array] => [np.ones([3, 2]), np.zeros([3, 2])];
const waits = (stage: string): string[] => [`wait for ${stage} {`, `wait ${stage}.w`, `wait ${stage}.b`, '}'];
const gives = (stage: string, first: number): string[] => [
  `gradient of ${stage} {`,
  `all-reduce ${stage}.w ${first}`,
  `all-reduce ${stage}.b ${first + 1}`,
  '}',
];

describe('a model in stages', () => {
  it('gives gradients stage by stage, the last one first, and each stage of the next pass waits for its own', async () => {
    const log: string[] = [];
    const model = await distributeStages(recorded(log), stages(), { optimizer: () => ({ update: (own) => own }) });
    const first = model.step(...batch());
    const given = [...gives('last', 4), ...gives('second', 2), ...gives('first', 0), 'gradients averaged {', '}'];
    const empty = ['first', 'second', 'last'].flatMap((stage) => [`wait for ${stage} {`, '}']);
    expect(log.splice(0)).toEqual(['forward pass {', ...empty, '}', ...given]);
    expect(model.step(...batch())).toBe(first);
    expect(log.splice(0)).toEqual(['forward pass {', ...waits('first'), ...waits('second'), ...waits('last'), '}', ...given]);
    model.close();
    expect(log).toEqual([...waits('first'), ...waits('second'), ...waits('last')]);
  });

  it('updates a stage once for each step, whoever looks at it', async () => {
    const updates: string[] = [];
    const model = await distributeStages(recorded([]), stages(), {
      optimizer: ({ name }) => ({
        update: (own) => {
          updates.push(name);
          return own;
        },
      }),
    });
    model.step(...batch());
    expect(updates.splice(0)).toEqual([]);
    expect(model.parameters).toHaveLength(3);
    expect(updates.splice(0)).toEqual(['first', 'second', 'last']);
    model.loss(...batch());
    model.drain();
    expect(updates).toEqual([]);
    model.step(...batch());
    model.close();
    expect(updates).toEqual(['first', 'second', 'last']);
  });

  it('fails with what ended the group, again and again', async () => {
    let lost = false;
    const model = await distributeStages(
      recorded([], () => lost),
      stages(),
      { optimizer: () => ({ update: (own) => own }) },
    );
    model.step(...batch());
    lost = true;
    for (let time = 0; time < 2; time++) {
      expect(() => model.step(...batch())).toThrow(expect.objectContaining({ code: 'peer-lost' }));
      expect(() => model.drain()).toThrow(/rank 1 died/);
    }
  });
});
