/** The conformance suite of rendezvous: for the table of one process and for every carrier between two. */
import fc from 'fast-check';
import { afterEach, describe, expect } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom, systemRandom } from '../../base/random.ts';
import { testsBut, type Skip } from '../../base/testing/skips.ts';
import { dtypes, viewOf } from '../../memory/dtype.ts';
import { formatRendezvousKey, parseRendezvousKey } from '../table/rendezvous-key.ts';
import type { PieceSink } from '../protocol/tensor-carrier.ts';
import type { SentValue } from '../value/staged-tensor.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import { stagedTensor } from '../testing/staged-tensor.ts';
import type { StepRendezvous } from './step-rendezvous.ts';
import type { WorkerCore } from './worker-core.ts';

/** Two workers that can ask each other; one and the same for the table of one process. */
export interface RendezvousWorld {
  readonly a: WorkerCore;
  readonly b: WorkerCore;
  /** Breaks what connects the workers; both go on. Resolves when both have heard of it. */
  break?(): Promise<unknown>;
  /** Ends the connection as a crash of `a` would. */
  crash?(): void;
  /** Kills `a`. @returns the process that takes its place, when both know each other. */
  restart?(): Promise<WorkerCore>;
  close(): Promise<void>;
}

type Step = StepRendezvous<TensorValue, SentValue>;

export function dense(data: ArrayLike<number>, shape: readonly number[] = [data.length]): TensorValue {
  return { dtype: 'float32', shape, data: Float32Array.from(data) };
}

export function strings(...data: string[]): TensorValue {
  return { dtype: 'string', shape: [data.length], data };
}

/** Without what a carrier adds. */
export function plain(value: TensorValue | undefined): unknown {
  return value === undefined
    ? undefined
    : { dtype: value.dtype, shape: [...value.shape], data: Array.from(value.data as ArrayLike<unknown>) };
}

/** The same as `plain` and an expectation, for many elements. */
function isSame(a: TensorValue | undefined, b: TensorValue | undefined): boolean {
  if (a === undefined || b === undefined) return a === b;
  const [x, y] = [a, b].map(({ data }) => data as Float32Array).map((data) => Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  return a.dtype === b.dtype && a.shape.join() === b.shape.join() && x.equals(y);
}

export function describeRendezvous(
  name: string,
  makeWorld: () => Promise<RendezvousWorld>,
  options: { readonly skips?: readonly Skip[] } = {},
): void {
  const { test, checkSkips } = testsBut(options.skips);
  describe(`rendezvous conformance: ${name}`, () => {
    const worlds: RendezvousWorld[] = [];
    afterEach(async () => {
      for (const world of worlds.splice(0)) await world.close();
    });
    const start = async () => {
      const world = await makeWorld();
      worlds.push(world);
      const { a, b } = world;
      const isOne = a === b;
      /** The step on both sides. */
      const begin = (stepId: number): { a: Step; b: Step } => {
        const atA = a.beginStep(stepId);
        return { a: atA, b: isOne ? atA : b.beginStep(stepId) };
      };
      const end = (stepId: number): void => {
        a.endStep(stepId);
        if (!isOne) b.endStep(stepId);
      };
      const ab = (text: string): string => a.key(text, a.self, b.self);
      const ba = (text: string): string => (isOne ? a.key(`back ${text}`, a.self, a.self) : b.key(text, b.self, a.self));
      return { world, isOne, begin, end, ab, ba };
    };

    test('brings values of every dtype, sent before or after they are asked for', async () => {
      const { begin, ab } = await start();
      const values = dtypes.map(({ name: dtype, bytes }): TensorValue => {
        const buffer = Uint8Array.from({ length: 6 * bytes }, (_, k) => (dtype === 'bool' ? k % 2 : (k * 37) & 0x3f)).buffer;
        return { dtype, shape: [2, 3], data: viewOf(dtype, buffer, 0, 6) };
      });
      const { a, b } = begin(1);
      values.forEach((value, k) => k % 2 === 0 && a.send(ab(value.dtype), value));
      const received = values.map(({ dtype }) => b.recvAsync(ab(dtype)));
      values.forEach((value, k) => k % 2 === 1 && a.send(ab(value.dtype), value));
      expect((await Promise.all(received)).map(plain)).toEqual(values.map(plain));
    });

    test('brings strings, empty tensors, scalars and dead ones', async () => {
      const { begin, ab } = await start();
      const values: Record<string, TensorValue | undefined> = {
        strings: strings('', 'shoal', 'größer ☂', 'x'.repeat(300)),
        none: strings(),
        empty: dense([], [0, 7]),
        scalar: dense([42], []),
        dead: undefined,
      };
      for (const stepId of [1, 2]) {
        const { a, b } = begin(stepId);
        const received = Object.keys(values).map((text) => b.recvAsync(ab(text)));
        for (const [text, value] of Object.entries(values)) a.send(ab(text), value);
        expect((await Promise.all(received)).map(plain)).toEqual(Object.values(values).map(plain));
      }
    });

    test('brings 5 MiB, both ways at once', async () => {
      const { begin, ab, ba } = await start();
      const { a, b } = begin(1);
      const large = dense(Float32Array.from({ length: 5 << 18 }, (_, k) => k));
      a.send(ab('large'), large);
      b.send(ba('large'), large);
      const [there, back] = await Promise.all([b.recvAsync(ab('large')), a.recvAsync(ba('large'))]);
      for (const value of [there, back])
        expect(Buffer.from((value!.data as Float32Array).slice().buffer).equals(Buffer.from((large.data as Float32Array).buffer))).toBe(
          true,
        );
    });

    test('brings many tensors in steps that overlap, to the step they were sent in', async () => {
      const { begin, end, ab } = await start();
      const steps = [1, 2, 3].map(begin);
      const names = Array.from({ length: 200 }, (_, k) => `t${k}`);
      const received = steps.map(({ b }) => Promise.all(names.map((text) => b.recvAsync(ab(text)))));
      steps.toReversed().forEach(({ a }, back) => names.forEach((text, k) => a.send(ab(text), dense([3 - back, k]))));
      for (const [index, values] of (await Promise.all(received)).entries()) {
        expect(values.map((value) => [...(value!.data as Float32Array)])).toEqual(names.map((_, k) => [index + 1, k]));
        for (const value of values) value!.release?.();
        end(index + 1);
      }
    });

    test('answers several keys together, dead ones slot by slot', async () => {
      const { begin, ab } = await start();
      for (const stepId of [1, 2, 3]) {
        const { a, b } = begin(stepId);
        const fused = b.recvFused(['x', 'dead', 'text', 'empty', 'y'].map(ab));
        a.send(ab('text'), strings(`step ${stepId}`));
        a.send(ab('dead'), undefined);
        a.send(ab('y'), dense(new Float32Array(100 * stepId)));
        a.send(ab('empty'), dense([]));
        a.send(ab('x'), stepId === 2 ? undefined : dense([stepId]));
        const x = stepId === 2 ? undefined : dense([stepId]);
        expect((await fused).map(plain)).toEqual(
          [x, undefined, strings(`step ${stepId}`), dense([]), dense(new Float32Array(100 * stepId))].map(plain),
        );
      }
    });

    test('brings tensors that are read in pieces, whole and fused with others, and says when one cannot be read', async () => {
      const { begin, end, ab } = await start();
      for (let stepId = 1; stepId <= 3; stepId++) {
        const { a, b } = begin(stepId);
        const large = stagedTensor(dense(Float32Array.from({ length: 1_100_000 }, (_, k) => k % (1000 + stepId))));
        const empty = stagedTensor(dense([], [3, 0]));
        const small = stagedTensor(dense([stepId, 2], [2, 1]));
        const broken = stagedTensor(dense(new Float32Array(10)), { fails: new ShoalError('system', 'the device was lost') });
        const received = [b.recvAsync(ab('large')), b.recvAsync(ab('empty')), b.recvFused([ab('small'), ab('host')])] as const;
        const failing = [b.recvAsync(ab('broken')), b.recvFused([ab('other'), ab('broken too')])];
        if (stepId % 2 === 0) await new Promise((resolve) => setImmediate(resolve));
        for (const [name, value] of Object.entries({ large, empty, small, host: dense([5]), broken, other: dense([6]) }))
          a.send(ab(name), value);
        a.send(ab('broken too'), stagedTensor(dense([1]), { fails: new ShoalError('system', 'the device was lost') }));
        for (const each of failing)
          await expect(each).rejects.toMatchObject({ code: 'system', message: expect.stringMatching(/the device was lost/) as string });
        const [whole, ...values] = [await received[0], await received[1], ...(await received[2])];
        expect(isSame(whole, large.value)).toBe(true);
        expect(values.map(plain)).toEqual([...[empty, small].map(({ value }) => value), dense([5])].map(plain));
        for (const value of [whole, ...values]) value!.release?.();
        for (const each of [large, empty, small]) expect(each.released).toEqual([undefined]);
        expect(broken.released).toMatchObject([{ code: 'system' }]);
        end(stepId);
      }
    });

    test('tells of pieces that have come before all of the tensor has, where it tells at all', async () => {
      const { begin, end, ab } = await start();
      const pieceBytes = 65_536;
      for (let stepId = 1; stepId <= 6; stepId++) {
        const { a, b } = begin(stepId);
        // Other sizes than expected as well.
        const host = dense(Float32Array.from({ length: stepId === 4 ? 200_000 : 100_000 }, (_, k) => k + stepId));
        const told: number[] = [];
        const sink: PieceSink = {
          pieceBytes,
          expected: { dtype: 'float32', shape: [100_000], bytes: 400_000 },
          receive({ bytes }, at, piece) {
            told.push(at);
            const end = Math.min(at + pieceBytes, bytes);
            const expected = new Uint8Array((host.data as Float32Array).buffer, at, end - at);
            if (Buffer.compare(expected, piece) !== 0) throw new Error(`piece ${at} of step ${stepId} is another`);
          },
        };
        const received = b.recvAsync(ab('x'), undefined, sink);
        a.send(ab('x'), stepId === 6 ? undefined : stepId % 2 === 0 ? host : stagedTensor(host));
        expect(isSame(await received, stepId === 6 ? undefined : host)).toBe(true);
        expect(new Set(told).size).toBe(told.length);
        for (const at of told) expect(at % pieceBytes).toBe(0);
        (await received)?.release?.();
        end(stepId);
      }
    });

    test('says which slot of several has failed', async () => {
      const { begin, ab } = await start();
      const { a, b } = begin(1);
      a.send(ab('x'), dense([1]));
      a.send(ab('y'), dense([2]));
      await b.recvAsync(ab('y'));
      const failed = b.recvFused([ab('x'), ab('y')]);
      await expect(failed).rejects.toThrow(/slot 1 of 2, 'y' from .*asked for twice/);
    });

    test('keeps iterations of loops apart', async () => {
      const { begin, ab } = await start();
      const { a, b } = begin(1);
      const inLoop = (iteration: number): string => formatRendezvousKey({ ...parseRendezvousKey(ab('x')), frame: 3, iteration });
      const received = [2, 0, 1].map((iteration) => b.recvAsync(inLoop(iteration)));
      for (const iteration of [0, 1, 2]) a.send(inLoop(iteration), dense([iteration]));
      expect((await Promise.all(received)).map(plain)).toEqual([2, 0, 1].map((k) => plain(dense([k]))));
    });

    test('waits for a step that has not begun where the tensor is sent', async () => {
      const { world, ab } = await start();
      const b = world.b.beginStep(7);
      const received = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])] as const;
      await b
        .recvAsync(world.a.key('x', world.a.self, world.b.self).replace(';x;', ';other;'), { signal: AbortSignal.timeout(1) })
        .catch(() => undefined);
      const a = world.a.beginStep(7);
      for (const [k, text] of ['x', 'y', 'z'].entries()) a.send(ab(text), dense([k]));
      expect(plain(await received[0])).toEqual(plain(dense([0])));
      expect((await received[1]).map(plain)).toEqual([dense([1]), dense([2])].map(plain));
    });

    test('takes other metadata in every step, and dead every other step', async () => {
      const { begin, end, ab } = await start();
      for (let stepId = 1; stepId <= 20; stepId++) {
        const { a, b } = begin(stepId);
        const value = stepId % 3 === 0 ? strings('s'.repeat(stepId * 10)) : dense(new Float32Array((stepId * 7919) % 1000).fill(stepId));
        const received = [b.recvAsync(ab('changing')), b.recvAsync(ab('toggling'))];
        a.send(ab('changing'), value);
        a.send(ab('toggling'), stepId % 2 === 0 ? undefined : dense([stepId]));
        const [changing, toggling] = await Promise.all(received);
        expect([changing, toggling].map(plain)).toEqual([value, stepId % 2 === 0 ? undefined : dense([stepId])].map(plain));
        changing!.release?.();
        toggling?.release?.();
        end(stepId);
      }
    });

    test('fails what waits, and what comes later, when the sender aborts the step', async () => {
      const { world, begin, ab } = await start();
      const { b } = begin(1);
      const other = begin(2);
      const waiting = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])];
      const unharmed = other.b.recvAsync(ab('x'));
      // Known to the sender before it aborts.
      other.a.send(ab('first'), dense([1]));
      await other.b.recvAsync(ab('first'));
      world.a.endStep(1, new ShoalError('out-of-memory', 'the disk is full'));
      for (const each of waiting)
        await expect(each).rejects.toMatchObject({ code: 'out-of-memory', message: expect.stringMatching(/the disk is full/) as string });
      await expect(b.recvAsync(ab('w'))).rejects.toThrow(/the disk is full/);
      other.a.send(ab('x'), dense([5]));
      expect(plain(await unharmed)).toEqual(plain(dense([5])));
    });

    test('fails what waits when the receiver aborts the step, and lets nothing late in', async () => {
      const { begin, ab, world, isOne } = await start();
      const { a, b } = begin(1);
      const waiting = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])];
      b.startAbort(new ShoalError('aborted', 'enough'));
      for (const each of waiting) await expect(each).rejects.toThrow('enough');
      await expect(b.recvAsync(ab('w'))).rejects.toThrow('enough');
      if (isOne) return;
      for (const text of ['x', 'y', 'z']) a.send(ab(text), dense([1]));
      const next = begin(2);
      next.a.send(ab('x'), dense([2]));
      expect(plain(await next.b.recvAsync(ab('x')))).toEqual(plain(dense([2])));
      await world.a.close();
    });

    test('gives up a receive by its signal, after which the key may be asked for again', async () => {
      const { begin, ab } = await start();
      const { a, b } = begin(1);
      for (let attempt = 0; attempt < 3; attempt++) {
        const abort = new AbortController();
        const given = [b.recvAsync(ab('x'), { signal: abort.signal }), b.recvFused([ab('y'), ab('z')], { signal: abort.signal })];
        if (attempt > 0) await new Promise((resolve) => setImmediate(resolve));
        abort.abort();
        for (const each of given) await expect(each).rejects.toMatchObject({ code: 'aborted' });
      }
      const again = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])];
      // A tensor that is sent while a cancelled request is on its way may go with it.
      a.send(ab('first'), dense([1]));
      await b.recvAsync(ab('first'));
      for (const text of ['x', 'y', 'z']) a.send(ab(text), dense([7]));
      expect(plain((await again[0]) as TensorValue)).toEqual(plain(dense([7])));
      expect(((await again[1]) as TensorValue[]).map(plain)).toEqual([dense([7]), dense([7])].map(plain));
    });

    test('refuses a key twice, of another incarnation, of nobody, and values that are none', async () => {
      const { begin, ab, world, isOne } = await start();
      const { a, b } = begin(1);
      a.send(ab('x'), dense([1]));
      expect(() => a.send(ab('x'), dense([1]))).toThrow(/sent twice/);
      await b.recvAsync(ab('x'));
      await expect(b.recvAsync(ab('x'))).rejects.toMatchObject({
        code: 'usage',
        message: expect.stringMatching(/asked for twice/) as string,
      });
      const restarted = formatRendezvousKey({ ...parseRendezvousKey(ab('y')), incarnation: world.a.self.incarnation + 1n });
      await expect(b.recvAsync(restarted)).rejects.toMatchObject({
        code: 'mismatch',
        message: expect.stringMatching(/has restarted/) as string,
      });
      expect(() => a.send(restarted, dense([1]))).toThrow(expect.objectContaining({ code: 'mismatch' }));
      const nobody = formatRendezvousKey({ ...parseRendezvousKey(ab('y')), sendDevice: '/job:nobody' });
      await expect(b.recvAsync(nobody)).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/nobody/) as string });
      await expect(b.recvAsync('no key')).rejects.toMatchObject({ code: 'protocol' });
      if (!isOne) await expect(b.recvFused([ab('y'), world.b.key('z', world.b.self, world.a.self)])).rejects.toThrow(/from one worker/);
      for (const bad of [
        {},
        null,
        5,
        { dtype: 'float32', shape: [2], data: new Float32Array(3) },
        { dtype: 'float32', shape: [1], data: [1] },
        { dtype: 'string', shape: [1], data: [1] },
        { dtype: 'float32', shape: [-1], data: new Float32Array(0) },
        { dtype: 'float65', shape: [0], data: new Float32Array(0) },
      ])
        expect(() => a.send(ab('bad'), bad as TensorValue), JSON.stringify(bad)).toThrow(ShoalError);
    });

    test('fails what waits for a worker that dies, and nothing else', async () => {
      const { world, begin, ab } = await start();
      const { b } = begin(1);
      b.send(world.b.key('own', world.b.self, world.b.self), dense([3]));
      const waiting = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])];
      await new Promise((resolve) => setImmediate(resolve));
      world.crash!();
      for (const each of waiting) await expect(each).rejects.toMatchObject({ code: 'peer-lost' });
      await expect(b.recvAsync(ab('w'))).rejects.toMatchObject({ code: 'peer-lost' });
      expect(plain(await b.recvAsync(world.b.key('own', world.b.self, world.b.self)))).toEqual(plain(dense([3])));
    });

    test('fails what was sent to a worker that dies, now and in later steps, and nothing else', async () => {
      const { world, begin, ab, ba } = await start();
      const { b } = begin(1);
      const own = world.b.key('own', world.b.self, world.b.self);
      const told: [string, string | undefined][] = [];
      const sent = (name: string): TensorValue => ({ ...dense([1]), release: (cause) => void told.push([name, cause?.message]) });
      b.send(own, sent('own'));
      b.send(ba('unasked'), sent('unasked'));
      b.send(ba('dead'), undefined);
      const waiting = b.recvAsync(ab('x'));
      world.crash!();
      await expect(waiting).rejects.toMatchObject({
        code: 'peer-lost',
        message: expect.stringMatching(/^'x' from \S+ did not come in step 1: /) as string,
      });
      expect(told).toEqual([['unasked', expect.stringMatching(/^'unasked' for \S+task:0\S+ was not taken in step 1: /)]]);
      for (const step of [b, begin(2).b])
        for (const value of [sent('later'), undefined])
          expect(() => step.send(ba('later'), value)).toThrow(
            expect.objectContaining({
              code: 'peer-lost',
              message: expect.stringMatching(/^'later' cannot be sent to \S+task:0/) as string,
            }),
          );
      expect(plain(await b.recvAsync(own))).toEqual(plain(dense([1])));
      expect(told).toHaveLength(1);
    });

    const turns = async (count: number): Promise<void> => {
      for (let left = count; left > 0; left--) await new Promise((resolve) => setImmediate(resolve));
    };

    test('asks again over the next connection when one breaks', async () => {
      const { world, begin, end, ab, ba } = await start();
      for (let stepId = 1; stepId <= 6; stepId++) {
        const { a, b } = begin(stepId);
        const given = new AbortController();
        const waiting = [b.recvAsync(ab('x')), a.recvAsync(ba('x')), b.recvAsync(ab('staged'))];
        const fused = b.recvFused(['y', 'dead', 'z'].map(ab));
        const cancelled = b.recvAsync(ab('given up'), given).catch((thrown: unknown) => thrown);
        await turns(stepId % 3);
        await world.break!();
        const later = b.recvAsync(ab('later'));
        if (stepId % 2 === 0) await turns(3);
        given.abort();
        a.send(ab('x'), dense([stepId]));
        b.send(ba('x'), dense([-stepId]));
        a.send(ab('staged'), stagedTensor(dense([stepId, 2])));
        a.send(ab('y'), dense([1]));
        a.send(ab('dead'), undefined);
        a.send(ab('z'), dense([2]));
        a.send(ab('later'), strings('later'));
        expect((await Promise.all(waiting)).map(plain)).toEqual([dense([stepId]), dense([-stepId]), dense([stepId, 2])].map(plain));
        expect((await fused).map(plain)).toEqual([dense([1]), undefined, dense([2])].map(plain));
        expect(plain(await later)).toEqual(plain(strings('later')));
        expect(await cancelled).toMatchObject({ code: 'aborted' });
        end(stepId);
      }
    });

    test('gives again what had not left when the connection broke, and says of the rest that it is lost', async () => {
      const { world, begin, end, ab } = await start();
      const large = dense(new Float32Array(600_000).fill(7));
      const names = ['large 0', 'large 1', 'large 2'];
      let lost = 0;
      for (let stepId = 1; stepId <= 10; stepId++) {
        const { a, b } = begin(stepId);
        const told: (string | undefined)[] = [];
        const received = names.map((name) => b.recvAsync(ab(name)).catch((thrown: unknown) => thrown as ShoalError));
        await turns(stepId % 3);
        for (const name of names) a.send(ab(name), { ...large, release: (cause) => void told.push(cause?.message) });
        await turns(stepId % 5);
        await world.break!();
        for (const [k, outcome] of (await Promise.all(received)).entries()) {
          if (outcome instanceof Error) {
            lost++;
            expect(outcome).toMatchObject({
              code: 'peer-lost',
              message: expect.stringMatching(`'large ${k}' from \\S+task:0\\S+ had left over a connection that broke`) as string,
            });
          } else {
            expect(isSame(outcome, large)).toBe(true);
            outcome!.release?.();
          }
        }
        end(stepId);
        await expect.poll(() => told).toEqual([undefined, undefined, undefined]);
      }
      expect(lost).toBeLessThan(30);
    });

    test('fails what waits for a process that was killed, and goes on with the next one', async () => {
      const { world, begin, ab, ba } = await start();
      const { b } = begin(1);
      const told: (string | undefined)[] = [];
      b.send(ba('unasked'), { ...dense([1]), release: (cause) => void told.push(cause?.code) });
      const waiting = [b.recvAsync(ab('x')), b.recvFused([ab('y'), ab('z')])].map((each) => each.catch((thrown: unknown) => thrown));
      const old = ab('x');
      await new Promise((resolve) => setImmediate(resolve));
      const a = await world.restart!();
      for (const each of waiting)
        expect(await each).toMatchObject({
          code: 'peer-lost',
          message: expect.stringMatching(/'[xy]' from \S+task:0\S+ did not come in step 1: /) as string,
        });
      expect(told).toEqual(['peer-lost']);
      await expect(b.recvAsync(old)).rejects.toMatchObject({ code: 'mismatch' });
      for (const stepId of [2, 3]) {
        const steps = { a: a.beginStep(stepId), b: world.b.beginStep(stepId) };
        const [there, back] = [a.key('x', a.self, world.b.self), world.b.key('x', world.b.self, a.self)];
        const received = [steps.b.recvAsync(there), steps.a.recvAsync(back)];
        steps.a.send(there, dense([stepId]));
        steps.b.send(back, dense([-stepId]));
        expect((await Promise.all(received)).map(plain)).toEqual([dense([stepId]), dense([-stepId])].map(plain));
      }
    });

    test('writes nothing late into memory that another tensor was given', async () => {
      const { begin, end, ab, ba } = await start();
      const seed = Number(process.env.RENDEZVOUS_SEED ?? systemRandom.integer(2 ** 31));
      const random = seededRandom(seed);
      const count = 3;
      const elements = 16_384;
      const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
      const turns = async (): Promise<void> => {
        for (let left = random.integer(4); left > 0; left--) await turn();
      };
      const filled = (stepId: number): TensorValue => dense(new Array<number>(elements).fill(stepId));
      let sendLate = (): void => {};
      for (let stepId = 1; stepId <= 60; stepId++) {
        const { a, b } = begin(stepId);
        const abort = new AbortController();
        const isGivenUp = stepId % 2 === 0;
        const received = Array.from({ length: count }, (_, k) => b.recvAsync(ab(`x${k}`), isGivenUp ? { signal: abort.signal } : {}));
        const outcomes = Promise.allSettled(received);
        const returned = isGivenUp ? Array.from({ length: count }, (_, k) => a.recvAsync(ba(`back${k}`))) : [];
        await turns();
        const inTime = isGivenUp ? random.integer(count + 1) : count;
        for (let k = 0; k < inTime; k++) a.send(ab(`x${k}`), filled(stepId));
        await turns();
        // Some have come, some are on their way, some are not sent yet. What takes their memory is read into it now and leaves later, and
        // the next step's tensors.
        if (isGivenUp) {
          abort.abort();
          const rest = async (): Promise<void> => {
            for (let left = 6; left > 0; left--) await turn();
          };
          for (let k = 0; k < count; k++) b.send(ba(`back${k}`), stagedTensor(filled(-stepId), { turn: () => Promise.resolve(), rest }));
        }
        const values = (await outcomes).flatMap((each) => (each.status === 'fulfilled' ? [each.value!] : []));
        if (!isGivenUp) expect(values).toHaveLength(count);
        sendLate();
        for (let looks = 0; looks < 8; looks++, await turn())
          for (const { data } of values)
            expect(
              (data as Float32Array).every((each) => each === stepId),
              `step ${stepId}; RENDEZVOUS_SEED=${seed}`,
            ).toBe(true);
        for (const value of await Promise.all(returned)) {
          expect(
            (value!.data as Float32Array).every((each) => each === -stepId),
            `back in step ${stepId}; RENDEZVOUS_SEED=${seed}`,
          ).toBe(true);
          value!.release?.();
        }
        for (const value of values) value.release?.();
        sendLate = () => {
          for (let k = inTime; k < count; k++) a.send(ab(`x${k}`), filled(stepId));
        };
        if (isGivenUp) continue;
        end(stepId - 1);
        end(stepId);
      }
    });

    test('does what the model says, whatever the order of sends, receives, cancels and aborts', async () => {
      const { begin, ab, world, isOne } = await start();
      let stepId = 100;
      const action = fc.record({
        kind: fc.constantFrom('send', 'send', 'send', 'recv', 'recv', 'fused', 'cancel', 'abort', 'turn'),
        step: fc.nat(1),
        key: fc.nat(5),
        size: fc.constantFrom(-1, 0, 1, 3, 100, 5000),
      });
      await fc.assert(
        fc.asyncProperty(fc.array(action, { minLength: 5, maxLength: 60 }), async (actions) => {
          const ids = [stepId++, stepId++];
          const steps = ids.map(begin);
          const sent = new Map<string, TensorValue | undefined>();
          const aborted = new Set<number>();
          const asked = new Set<string>();
          const given: { keys: string[]; step: number; abort: AbortController; cancelled: boolean; outcome: Promise<unknown> }[] = [];
          const idOf = (step: number, key: number): string => `${step} ${key}`;
          const ask = (step: number, keys: number[]): void => {
            const fresh = keys.filter((key) => !asked.has(idOf(step, key)));
            if (fresh.length === 0) return;
            for (const key of fresh) asked.add(idOf(step, key));
            const abort = new AbortController();
            const texts = fresh.map((key) => ab(`k${key}`));
            const received =
              fresh.length === 1
                ? steps[step].b.recvAsync(texts[0], abort).then((value) => [value])
                : steps[step].b.recvFused(texts, abort);
            const outcome = received.catch((thrown: unknown) => thrown);
            given.push({ keys: fresh.map((key) => idOf(step, key)), step, abort, cancelled: false, outcome });
          };
          for (const { kind, step, key, size } of actions) {
            const id = idOf(step, key);
            if (kind === 'send' && !sent.has(id) && !aborted.has(step)) {
              const value =
                size < 0
                  ? undefined
                  : size === 3
                    ? strings(id, 'x', 'y'.repeat(key * 30))
                    : dense(new Float32Array(size).fill(ids[step] * 8 + key));
              sent.set(id, value);
              steps[step].a.send(ab(`k${key}`), value);
            } else if (kind === 'recv') ask(step, [key]);
            else if (kind === 'fused') ask(step, [key, (key + 1) % 6, (key + 3) % 6]);
            else if (kind === 'abort' && size === 100) {
              aborted.add(step);
              world.a.endStep(ids[step], new ShoalError('aborted', 'model'));
            } else if (kind === 'cancel' && given.length > 0) {
              const one = given[(key * 7 + size + 8) % given.length];
              one.cancelled = true;
              one.abort.abort();
            } else if (kind === 'turn') await new Promise((resolve) => setImmediate(resolve));
          }
          // Complete requests are answered by themselves; the rest ends with its step.
          const complete = given.filter(
            ({ keys, step, cancelled }) => !cancelled && !aborted.has(step) && keys.every((id) => sent.has(id)),
          );
          await Promise.all(complete.map(({ outcome }) => outcome));
          for (const id of ids) world.a.endStep(id);
          for (const one of given) {
            const outcome = await one.outcome;
            if (complete.includes(one))
              expect((outcome as (TensorValue | undefined)[]).map(plain)).toEqual(one.keys.map((id) => plain(sent.get(id))));
            else if (Array.isArray(outcome))
              expect((outcome as (TensorValue | undefined)[]).map(plain)).toEqual(one.keys.map((id) => plain(sent.get(id))));
            else expect(outcome).toMatchObject({ code: 'aborted' });
            if (!complete.includes(one) && !one.cancelled && !aborted.has(one.step)) expect(outcome).toBeInstanceOf(Error);
          }
          for (const { outcome } of given) for (const value of [await outcome].flat()) (value as TensorValue | undefined)?.release?.();
          if (!isOne) for (const id of ids) world.b.endStep(id);
        }),
        { numRuns: 150 },
      );
    });

    checkSkips();
  });
}
