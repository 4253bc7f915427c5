/** Like public-api.test.ts, for `shoal/scheduler` and `shoal/engine`: every function and class refuses wrong arguments. */
import { describe, expect, it } from 'vitest';
import * as engine from '../../src/engine/index.ts';
import * as scheduler from '../../src/scheduler/index.ts';
import { argument, call, fields, fresh, hasAll, options, walk, type CallsOf, type Exports } from '../support/public-calls.ts';

class Transfer extends scheduler.Task {
  protected part(): Transfer {
    return new Transfer({ name: 'x', operation: 'push', bytes: 1 });
  }

  protected onDo(): void {}
}

describe('shoal/scheduler', () => {
  const exported: Exports<typeof scheduler> = {
    Arbiter: call(
      (...given: ConstructorParameters<typeof scheduler.Arbiter>) => new scheduler.Arbiter(...given),
      options('memory', 'thread'),
    ),
    Core: call(
      (...given: ConstructorParameters<typeof scheduler.Core>) => new scheduler.Core(...given),
      fields({ creditBytes: 1, partitionBytes: 1 }, 'clock', 'memoryBytes', 'timeoutMs', 'tasksMax', 'linksMax', 'observer', 'arbiter'),
    ),
    OrderAgreement: call(
      (given: scheduler.OrderOptions) => new scheduler.OrderAgreement(given),
      fields({ rank: 0, size: 1 }, 'worldRanks', 'batchBytes', 'lowBytes'),
    ),
    Task: 'is abstract',
    Tuner: call(
      (...given: ConstructorParameters<typeof scheduler.Tuner>) => new scheduler.Tuner(...given),
      fields(
        { space: { creditBytes: { least: 1, most: 2 } } },
        ...['random', 'points', 'coveringPoints', 'stepsPerPoint', 'stepsAhead', 'margin', 'finalists', 'finalRounds', 'driftShare'],
      ),
    ),
  };
  const core = new scheduler.Core({ creditBytes: 1, partitionBytes: 1 });
  const callsOfCore: CallsOf<scheduler.Core> = {
    start: 'takes nothing',
    shutdown: call(core.shutdown.bind(core), argument('abort')),
    setCredit: call(core.setCredit.bind(core), argument(1)),
    setPartition: call(core.setPartition.bind(core), argument(1)),
    setLink: call(core.setLink.bind(core), argument('a', 'string'), fields({}, 'creditBytes', 'partitionBytes', 'order', 'resource')),
    statusOf: call(core.statusOf.bind(core), argument('a', 'string')),
    removeLink: call(core.removeLink.bind(core), argument('a', 'string')),
    post: call(
      core.post.bind(core),
      fresh(() => new Transfer({ name: 'x', operation: 'push', bytes: 1 })),
    ),
    onReady: 'is for tasks',
    onFinish: 'is for tasks',
    endOverdue: 'takes nothing',
  };
  const agreement = new scheduler.OrderAgreement({ rank: 0, size: 2 });
  const callsOfAgreement: CallsOf<scheduler.OrderAgreement> = {
    ready: call(agreement.ready.bind(agreement), argument({ key: 'x', what: 'float32', priority: 0, bytes: 4, unitBytes: 4, parts: 1 })),
    receive: call(agreement.receive.bind(agreement), argument(1, 'number', 'NaN'), argument({ round: 0, posts: [], batchBytes: 4194304 })),
    next: 'takes nothing',
    started: call(agreement.started.bind(agreement), argument({ bytes: 4 })),
    absent: call(agreement.absent.bind(agreement), argument('x', 'string')),
  };
  const tuner = new scheduler.Tuner({ space: { creditBytes: { least: 1, most: 2 } } });
  let step = 0;
  const callsOfTuner: CallsOf<scheduler.Tuner> = {
    record: call(
      tuner.record.bind(tuner),
      fresh(() => step++),
      argument(1, 'number'),
    ),
    resume: call(tuner.resume.bind(tuner), argument(1), argument({ creditBytes: 1 }), argument(undefined, 'undefined', 'number')),
  };

  it('its classes', async () => {
    hasAll(scheduler, exported);
    await walk('scheduler', exported);
    // Kinds of tasks may pass their own options on: unknown ones are theirs.
    const given = { name: 'x', operation: 'push', bytes: 4 };
    for (const key of ['name', 'operation', 'bytes', 'priority', 'unitBytes', 'link', 'immediate', 'onEnd']) {
      expect(() => new Transfer({ ...given, [key]: Symbol('nonsense') }), key).toThrow(expect.objectContaining({ code: 'usage' }));
    }
    for (const wrong of [undefined, null, 5, []] as never[])
      expect(() => new Transfer(wrong)).toThrow(expect.objectContaining({ code: 'usage' }));
  });

  it('what a core does', async () => walk('core', callsOfCore));
  it('what an agreement does', async () => walk('agreement', callsOfAgreement));
  it('what a tuner does', async () => walk('tuner', callsOfTuner));
});

describe('shoal/engine', () => {
  const own = new engine.DependencyEngine();
  const [x, y] = [own.newVariable(), own.newVariable()];
  const nothing = (): void => undefined;
  const exported: Exports<typeof engine> = {
    DependencyEngine: call(
      (...given: ConstructorParameters<typeof engine.DependencyEngine>) => new engine.DependencyEngine(...given),
      options('clock', 'operationsMax', 'timeoutMs', 'operationsPerTurn'),
    ),
  };
  const callsOfEngine: CallsOf<engine.DependencyEngine> = {
    newVariable: call(own.newVariable.bind(own), argument('x', 'undefined', 'string')),
    pushAsync: call(
      own.pushAsync.bind(own),
      argument(nothing, 'function'),
      argument([x]),
      argument([y]),
      options('priority', 'name', 'onPoisoned'),
    ),
    pushSync: call(
      own.pushSync.bind(own),
      argument(nothing, 'function'),
      argument([x]),
      argument([y]),
      options('priority', 'name', 'onPoisoned'),
    ),
    deleteVariable: call(
      own.deleteVariable.bind(own),
      fresh(() => own.newVariable()),
      argument(undefined, 'undefined', 'function'),
    ),
    waitForVar: call(own.waitForVar.bind(own), argument(x), options('timeoutMs')),
    waitForAll: call(own.waitForAll.bind(own), options('timeoutMs')),
    runReady: 'takes nothing',
  };

  it('its class', async () => {
    hasAll(engine, exported);
    await walk('engine', exported);
  });

  it('what an engine does', async () => walk('engine', callsOfEngine));
});
