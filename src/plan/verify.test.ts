/** Each property that the verifier proves, on the smallest plan that breaks it. */
import { describe, expect, it } from 'vitest';
import { at, PlanBuilder, span, within } from './builder.ts';
import type { Plan, PlanRequest, Program, Step } from './ir.ts';
import { oneHost, separateHosts } from './topology.ts';
import { assertVerified } from './testing/assert-verified.ts';
import { verify } from './verify.ts';

const whole = { offset: 0, count: 8 };
const data = span('data', whole);

function plan(request: PlanRequest, build: (b: PlanBuilder) => void, association: Plan['association'] = 'none'): Plan {
  const b = new PlanBuilder(request);
  build(b);
  return b.finish('test', association);
}

const broadcast: PlanRequest = { collective: 'broadcast', topology: oneHost(2), count: 8, root: 0 };
const allReduce: PlanRequest = { collective: 'all-reduce', topology: oneHost(2), count: 8 };

function problemsOf(each: Plan): string {
  return verify(each).problems.join('\n');
}

/** A broadcast by one put, edited. */
function edited(edit: (programs: { -readonly [K in keyof Program]: Program[K] }[]) => void): Plan {
  const good = plan(broadcast, (b) => b.transfer(0, 1, data, data));
  const programs = good.programs.map((program) => ({ ...program }));
  edit(programs);
  return { ...good, programs };
}

describe('an accepted plan', () => {
  it('has a put and its wait', () => {
    expect(verify(plan(broadcast, (b) => b.transfer(0, 1, data, data)))).toEqual({ ok: true, problems: [] });
  });

  it('changes a source after the answer to it', () => {
    const good = plan(
      allReduce,
      (b) => {
        const slot = b.scratch(0, 8);
        b.transfer(1, 0, data, slot);
        b.combine(0, data, { left: data, right: slot, final: true });
        b.transfer(0, 1, data, data);
      },
      'canonical',
    );
    expect(verify(good).problems).toEqual([]);
  });
});

describe('structure', () => {
  const cases: [string, Step, RegExp][] = [
    [
      'a span outside its buffer',
      { kind: 'copy', target: { buffer: 'data', offset: 4, count: 5 }, source: { buffer: 'data', offset: 0, count: 5 } },
      /data\[4, 9\) is empty or outside/,
    ],
    [
      'a buffer that the collective does not have',
      { kind: 'copy', target: { ...data, buffer: 'output' }, source: data },
      /outside the buffer's 0 elements/,
    ],
    ['an empty span', { kind: 'copy', target: { ...data, count: 0 }, source: { ...data, count: 0, offset: 4 } }, /empty/],
    [
      'different counts',
      { kind: 'copy', target: { ...data, count: 2 }, source: { ...data, offset: 4, count: 3 } },
      /different counts: 3, 2/,
    ],
    ['overlapping copies', { kind: 'copy', target: { ...data, count: 4 }, source: { ...data, offset: 1, count: 4 } }, /overlap/],
    ['a put to itself', { kind: 'put', peer: 0, source: data, target: data, signal: 0 }, /puts to itself/],
    ['a rank that does not exist', { kind: 'signal', peer: 2, signal: 0 }, /rank 2, which does not exist/],
    ['a signal that does not exist', { kind: 'signal', peer: 1, signal: 1 }, /signal 1 of rank 1, which has 1/],
    ['a wait for nothing', { kind: 'wait', signal: 0, value: 0 }, /signal 0 of rank 0|value 0/],
    [
      'a tree that is no expression',
      { kind: 'reduce', targets: [data], sources: [data, data], tree: [0, 1], final: true },
      /not one expression/,
    ],
    ['a tree that underflows', { kind: 'reduce', targets: [data], sources: [data], tree: [-1, 0, 0], final: true }, /not one expression/],
    [
      'a tree of sources that are not there',
      { kind: 'reduce', targets: [data], sources: [data], tree: [0, 1, -1], final: true },
      /source 1 of 1/,
    ],
    [
      'a target that overlaps a source in part',
      { kind: 'reduce', targets: [{ ...data, count: 4 }], sources: [{ ...data, offset: 2, count: 4 }], tree: [0], final: true },
      /overlap without being equal/,
    ],
    [
      'targets that overlap',
      {
        kind: 'reduce',
        targets: [
          { ...data, count: 4 },
          { ...data, offset: 2, count: 4 },
        ],
        sources: [{ ...data, offset: 4, count: 4 }],
        tree: [0],
        final: true,
      },
      /targets .* overlap/,
    ],
  ];
  it.each(cases)('%s', (_, step, message) => {
    expect(problemsOf(edited((programs) => (programs[0].channels = [[...programs[0].channels[0], step]])))).toMatch(message);
  });

  it('memory of another host', () => {
    const request: PlanRequest = { ...broadcast, topology: separateHosts(2) };
    const bad = plan(request, (b) => {
      b.wait(b.notify(0, 1));
      b.copy(1, data, at(0, data));
      b.wait(b.notify(1, 0));
    });
    expect(problemsOf(bad)).toMatch(/rank 1 channel 0 step 1: touches data\[0, 8\) of 0 directly, which is on another host/);
  });

  it('a missing program', () => {
    expect(problemsOf(edited((programs) => programs.pop()))).toBe('there are 1 programs for 2 ranks');
  });
});

describe('order', () => {
  it('deadlock: each waits for the other first', () => {
    const bad = plan({ collective: 'barrier', topology: oneHost(2), count: 0 }, (b) => b.barrier());
    const programs = bad.programs.map((program) => ({ ...program, channels: [program.channels[0].toReversed()] }));
    expect(problemsOf({ ...bad, programs })).toBe(
      'deadlock: rank 0 channel 0 step 0 waits for signal 0 ≥ 1, which is raised 0 times\n' +
        'deadlock: rank 1 channel 0 step 0 waits for signal 0 ≥ 1, which is raised 0 times',
    );
  });

  it('a signal that nobody waits for', () => {
    const bad = edited((programs) => (programs[1].channels = [[]]));
    expect(problemsOf(bad)).toMatch(/signal 0 of rank 1 is raised 1 times by rank 0 channel 0 and waited for 0 times/);
  });

  it('a signal with two raisers', () => {
    const bad = edited((programs) => {
      const wait: Step = { kind: 'wait', signal: 0, value: 2 };
      programs[0].channels = [programs[0].channels[0], [{ kind: 'signal', peer: 1, signal: 0 }]];
      programs[1].channels = [[wait]];
    });
    expect(problemsOf(bad)).toMatch(/signal 0 of rank 1 is raised by rank 0 channel 0 and by rank 0 channel 1/);
  });

  it('a race: a source that is changed while it may still be read', () => {
    const build =
      (flushes: boolean) =>
      (b: PlanBuilder): void => {
        const slots = [b.scratch(0, 8), b.scratch(1, 8)];
        const arrivals = [b.send(0, 1, data, slots[1]), b.send(1, 0, data, slots[0])];
        arrivals.forEach((arrival) => b.wait(arrival));
        for (const rank of [0, 1]) {
          if (flushes) b.flush(rank);
          b.reduceAll(rank, [data], (peer) => (peer === rank ? data : slots[rank]));
        }
      };
    expect(problemsOf(plan(allReduce, build(true), 'canonical'))).toBe('');
    expect(problemsOf(plan(allReduce, build(false), 'canonical'))).toMatch(
      /race: rank 0 channel 0 step 0 \(put\) reads data\[0, 8\) of 0 and rank 0 channel 0 step 2 \(reduce\) writes data\[0, 8\) of 0 are/,
    );
  });

  it('a race: a slot that is used again before it was read', () => {
    const request: PlanRequest = { collective: 'all-gather', topology: oneHost(2), count: 8, counts: [8, 0] };
    const build =
      (answers: boolean) =>
      (b: PlanBuilder): void => {
        const slot = b.scratch(1, 4);
        b.copy(0, span('output', whole), span('input', whole));
        for (const offset of [0, 4]) {
          const half = { offset, count: 4 };
          b.transfer(0, 1, span('input', half), slot);
          b.copy(1, span('output', half), slot);
          if (answers) b.wait(b.notify(1, 0));
        }
      };
    expect(problemsOf(plan(request, build(true)))).toBe('');
    expect(problemsOf(plan(request, build(false)))).toMatch(/race: .*scratch\[0, 4\) of 1/);
  });

  it('a race between two channels of one rank', () => {
    const bad = plan(broadcast, (b) => {
      b.onChannel(1, () => b.copy(1, within(data, 0, 4), within(data, 4, 4)));
      b.transfer(0, 1, data, data);
    });
    expect(problemsOf(bad)).toMatch(/race: .*channel 1/);
  });

  it('a wait on one channel says nothing to another', () => {
    const request: PlanRequest = { collective: 'gather', topology: oneHost(2), count: 8, counts: [0, 8], root: 0 };
    const bad = plan(request, (b) => {
      const slot = b.scratch(0, 8);
      b.transfer(1, 0, span('input', whole), slot);
      b.onChannel(1, () => b.copy(0, span('output', whole), slot));
    });
    expect(problemsOf(bad)).toMatch(/race/);
  });
});

describe('begin and end', () => {
  it('a buffer that is read at once: every rank has begun', () => {
    const good = plan(broadcast, (b) => {
      b.copy(1, data, at(0, data));
      b.wait(b.notify(1, 0));
    });
    expect(problemsOf(good)).toBe('');
  });

  it('a buffer that may be read after its owner has ended', () => {
    const bad = plan(broadcast, (b) => {
      b.wait(b.notify(0, 1));
      b.copy(1, data, at(0, data));
    });
    expect(problemsOf(bad)).toMatch(/rank 1 channel 0 step 1 \(copy\) reads data\[0, 8\) of 0, possibly after rank 0's program has ended/);
  });

  it('a source that has not left when its program ends', () => {
    const bad = edited((programs) => (programs[0].channels = [programs[0].channels[0].filter(({ kind }) => kind !== 'flush')]));
    expect(problemsOf(bad)).toMatch(/rank 0 channel 0 step 0 \(put\) reads data\[0, 8\) of 0, possibly after rank 0's program has ended/);
  });

  it('a barrier needs no steps: the announcement is one', () => {
    expect(problemsOf(plan({ collective: 'barrier', topology: separateHosts(3), count: 0 }, () => {}))).toBe('');
  });
});

describe('entry and mailbox', () => {
  const mailbox = span('mailbox', whole);
  const good = plan(broadcast, (b) => b.copy(1, data, at(0, b.enter(0, data))));
  const withEntry = (rank: number, entry: readonly Step[]): Plan => {
    const programs = good.programs.map((program) => ({ ...program }));
    programs[rank].entry = entry as Program['entry'];
    return { ...good, programs };
  };
  const withStep = (step: Step): Plan => {
    const programs = good.programs.map((program) => ({ ...program, channels: [[...program.channels[0], step]], signalCount: 1 }));
    return { ...good, programs };
  };

  it('a mailbox is read without signals, also after its owner has ended', () => {
    expect(good.programs.map(({ entry, channels }) => [entry.length, channels[0].length])).toEqual([
      [1, 0],
      [0, 1],
    ]);
    expect(problemsOf(good)).toBe('');
  });

  it('the entry reads what the caller gave, also when a channel overwrites it at once', () => {
    const swap = plan({ ...allReduce }, (b) => {
      const boxes = [0, 1].map((rank) => at(rank, b.enter(rank, data)));
      for (const rank of [0, 1]) b.reduceAll(rank, [data], (peer) => boxes[peer]);
    });
    expect(problemsOf({ ...swap, association: 'canonical' })).toBe('');
  });

  it('a mailbox that nobody filled is garbage', () => {
    expect(problemsOf(withEntry(0, []))).toMatch(/rank 1 data\[0, 8\): \[0\] is garbage/);
  });

  it('a mailbox filled in part, or from elsewhere', () => {
    const copy = (offset: number, count: number): Step => ({
      kind: 'copy',
      target: span('mailbox', { offset: 0, count }),
      source: span('data', { offset, count }),
    });
    expect(problemsOf(withEntry(0, [copy(0, 7)]))).toMatch(/rank 1 data\[7, 8\): \[7\] is garbage/);
    expect(problemsOf(withEntry(0, [copy(0, 8), copy(1, 7)]))).toMatch(/\[0\] is data\[1\] of 0, not data\[0\] of 0/);
  });

  const entries: [string, Step, RegExp][] = [
    ['no copy', { kind: 'flush' }, /rank 0 entry step 0: is a flush; entry steps copy/],
    ['from scratch', { kind: 'copy', target: mailbox, source: span('scratch', whole) }, /entry steps read the rank's own data or input/],
    ['from a peer', { kind: 'copy', target: mailbox, source: at(1, data) }, /reads data\[0, 8\) of 1; entry steps read the rank's own/],
    ['into data', { kind: 'copy', target: data, source: data }, /writes data\[0, 8\); entry steps write the rank's own mailbox/],
    ["into a peer's mailbox", { kind: 'copy', target: at(1, mailbox), source: data }, /writes mailbox\[0, 8\) of 1; entry steps write/],
    [
      'past the end',
      { kind: 'copy', target: span('mailbox', { offset: 1020, count: 8 }), source: data },
      /mailbox\[1020, 1028\) is empty or outside the buffer's 1024/,
    ],
  ];
  it.each(entries)('an entry step: %s', (_, step, message) => {
    expect(problemsOf(withEntry(0, [step]))).toMatch(message);
  });

  it('holds as many elements as their size allows', () => {
    const far = { offset: 8000, count: 8 };
    const request = { ...broadcast, count: 8008 };
    const copy: Step = { kind: 'copy', target: span('mailbox', far), source: span('data', far) };
    const wide = plan(request, () => {});
    const programs = wide.programs.map((program) => ({ ...program, entry: [copy] as Program['entry'] }));
    expect(problemsOf({ ...wide, programs })).toMatch(/outside the buffer's 1024/);
    expect(problemsOf({ ...wide, programs, request: { ...request, elementBytes: 1 } })).not.toMatch(/outside/);
    expect(() => plan(request, (b) => b.enter(0, span('data', { offset: 0, count: 1025 })))).toThrow(
      '1025 elements enter a mailbox of 1024',
    );
  });

  const writes: [string, Step][] = [
    ['copy', { kind: 'copy', target: mailbox, source: data }],
    ['reduce', { kind: 'reduce', targets: [data, mailbox], sources: [data], tree: [0], final: true }],
    ['put', { kind: 'put', peer: 1, source: data, target: mailbox, signal: 0 }],
  ];
  it.each(writes)('a channel that writes a mailbox: %s', (_, step) => {
    expect(problemsOf(withStep(step))).toMatch(/rank 0 channel 0 step 0: writes mailbox\[0, 8\), which only entry steps may/);
  });

  it('a put from a mailbox', () => {
    expect(problemsOf(withStep({ kind: 'put', peer: 1, source: mailbox, target: data, signal: 0 }))).toMatch(/puts from a mailbox/);
  });

  it("a mailbox of another host's rank comes with its announcement; its other memory does not", () => {
    const far = (build: (b: PlanBuilder) => void): Plan => plan({ ...broadcast, topology: separateHosts(2) }, build);
    expect(problemsOf(far((b) => b.copy(1, data, at(0, b.enter(0, data)))))).toBe('');
    expect(problemsOf(far((b) => b.copy(1, data, at(0, data))))).toMatch(/touches data\[0, 8\) of 0 directly, which is on another host/);
    expect(problemsOf(far((b) => b.copy(0, at(1, mailbox), data)))).toMatch(/writes mailbox\[0, 8\) of 1, which only entry steps may/);
  });
});

it('a plan of which one rank was built cannot be proved', () => {
  const b = new PlanBuilder(broadcast, { onlyRank: 1 });
  b.transfer(0, 1, data, data);
  expect(problemsOf(b.finish('test', 'none'))).toBe("only rank 1's program was built; build the plan without onlyRank");
});

describe('results', () => {
  const reduceWith = (
    build: (b: PlanBuilder, slot: ReturnType<PlanBuilder['scratch']>) => void,
    association: Plan['association'] = 'canonical',
  ): Plan =>
    plan(
      allReduce,
      (b) => {
        const slot = b.scratch(0, 8);
        b.transfer(1, 0, data, slot);
        build(b, slot);
        b.transfer(0, 1, data, data);
      },
      association,
    );

  it('a contribution that is missing', () => {
    expect(problemsOf(reduceWith(() => {}))).toMatch(
      /rank 0 data\[0, 8\): \[0\] is data\[0\] of 0, not final\(\(data\[0\] of 0 ⊕ data\[0\] of 1\)\)/,
    );
  });

  it('a contribution that counts twice', () => {
    const twice = reduceWith((b, slot) => {
      b.combine(0, data, { left: data, right: slot, final: false });
      b.combine(0, data, { left: data, right: slot, final: true });
    }, 'relaxed');
    expect(problemsOf(twice)).toMatch(/every rank's contribution must be in it once/);
  });

  it('operands in another order, unless the order is relaxed', () => {
    const swapped = (association: Plan['association']): Plan =>
      reduceWith((b, slot) => b.combine(0, data, { left: slot, right: data, final: true }), association);
    expect(problemsOf(swapped('canonical'))).toMatch(/is final\(\(data\[0\] of 1 ⊕ data\[0\] of 0\)\), not final/);
    expect(problemsOf(swapped('relaxed'))).toBe('');
    expect(problemsOf(swapped('none'))).toMatch(/must say its association/);
  });

  it('relaxed sums that differ between ranks', () => {
    const bad = plan(
      allReduce,
      (b) => {
        const slots = [b.scratch(0, 8), b.scratch(1, 8)];
        const arrivals = [b.send(0, 1, data, slots[1]), b.send(1, 0, data, slots[0])];
        arrivals.forEach((arrival) => b.wait(arrival));
        for (const rank of [0, 1]) {
          b.flush(rank);
          b.combine(rank, data, { left: data, right: slots[rank], final: true });
        }
      },
      'relaxed',
    );
    expect(problemsOf(bad)).toMatch(/rank 0 has a sum of another order there/);
  });

  it('elements that are shifted by one', () => {
    const bad = plan(broadcast, (b) => {
      b.transfer(0, 1, within(data, 1, 7), within(data, 0, 7));
      b.transfer(0, 1, within(data, 0, 1), within(data, 7, 1));
    });
    expect(problemsOf(bad)).toMatch(/rank 1 data\[0, 7\): \[0\] is data\[1\] of 0, not data\[0\] of 0/);
  });

  it('garbage that reaches a result', () => {
    const bad = plan(broadcast, (b) => b.copy(1, data, b.scratch(1, 8)));
    expect(problemsOf(bad)).toMatch(/rank 1 data\[0, 8\): \[0\] is garbage/);
  });

  it('an input that is written', () => {
    const request: PlanRequest = { collective: 'scatter', topology: oneHost(2), count: 8, counts: [0, 8], root: 0 };
    const bad = plan(request, (b) => {
      b.transfer(0, 1, span('input', whole), span('output', whole));
      b.flush(0);
      b.copy(0, span('input', { offset: 0, count: 4 }), span('input', { offset: 4, count: 4 }));
    });
    expect(problemsOf(bad)).toMatch(/rank 0 input\[0, 4\): \[0\] is input\[4\] of 0, not input\[0\] of 0/);
  });

  it('a partial result in a plan that promises none', () => {
    const good = plan(
      { ...allReduce, topology: oneHost(3) },
      (b) => {
        const slot = b.scratch(0, 8);
        for (const [rank, final] of [
          [1, false],
          [2, true],
        ] as const) {
          b.transfer(rank, 0, data, slot);
          b.combine(0, data, { left: data, right: slot, final });
          b.wait(b.notify(0, 3 - rank));
        }
        b.transfer(0, 1, data, data);
        b.transfer(0, 2, data, data);
      },
      'relaxed',
    );
    expect(good.partials).toBe(true);
    expect(problemsOf({ ...good, partials: false })).toMatch(
      /rank 0 channel 0 step 1 takes or makes a partial result, and the plan says partials: false/,
    );
  });
});

describe('reports', () => {
  it('are cut after the wanted number of problems', () => {
    const bad = edited(
      (programs) => (programs[0].channels = [Array.from({ length: 30 }, () => ({ kind: 'signal', peer: 5, signal: 0 }) as const)]),
    );
    expect(verify(bad, { problemsMax: 2 }).problems).toHaveLength(3);
    expect(verify(bad, { problemsMax: 2 }).problems[2]).toBe('… and 28 more');
  });

  it('assertVerified names the plan', () => {
    expect(() => assertVerified(edited((programs) => (programs[1].channels = [[]])))).toThrow(
      /test broadcast of 8 elements on \[0 1\] is wrong:\n {2}signal 0/,
    );
  });
});
