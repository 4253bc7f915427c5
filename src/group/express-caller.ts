/** The express as the main thread sees it: small collectives of ranks on several hosts, announced, awaited and ended by the calling
 *  thread. Which calls take it follows from what all ranks agree on; on which thread it ends is a local matter.
 *
 *      call ─▶ begin ─▶ all there within the spin time ──▶ completed work
 *                   └─▶ ExpressWork ── waitSync ─▶ goes on waiting here, for a while
 *                              └── awaited, or left alone, or too late ─▶ comm thread ─▶ work      later calls queue behind it */
import { CallSites } from '../base/call-site.ts';
import type { ShoalError } from '../base/errors.ts';
import { checkKind } from '../base/options.ts';
import type { ControlBlock } from '../collectives/control-block.ts';
import { dtypeInfo } from '../memory/dtype.ts';
import type { StepMachine } from '../memory/step-machine.ts';
import type { BufferName } from '../plan/ir.ts';
import type { TraceRecorder } from '../trace/recorder.ts';
import type { CommClient } from './comm-client.ts';
import type { SharedBuffer } from './comm-protocol.ts';
import { waitName, workName, type CallSpan } from './collective-spans.ts';
import { callKey, type CollectiveCall } from './contract.ts';
import { Express, servesExpress, type ExpressOperation } from './express.ts';
import type { ExpressBuffers, ExpressWire } from './express-wire.ts';
import type { GroupSpec } from './group-spec.ts';
import type { PlanRunner } from './plan-runner.ts';
import type { Work } from './types.ts';
import { CompletedWork, type WorkHooks } from './work.ts';

/** Operations kept bound to their buffers, least recently bound dropped first. */
const boundMax = 512;
/** How long `waitSync` waits here before it leaves warnings and deadlines to the comm thread. */
const waitHereMs = 20;
const sleepMs = 1;

export interface ExpressCallerOptions {
  readonly spec: GroupSpec;
  readonly client: CommClient;
  readonly plans: PlanRunner;
  readonly machine: StepMachine;
  readonly trace: TraceRecorder;
  readonly own: ControlBlock;
  readonly firstSlot: number;
  readonly wire: ExpressWire;
  readonly bytesMax: number;
  /** How long a call itself waits. */
  readonly spinNs: number;
  readonly view: (buffer: SharedBuffer) => Uint8Array;
}

/** What a call needs to go on in the comm thread; made only when it must. */
export interface ExpressRequest {
  readonly call: CollectiveCall;
  readonly buffers: Partial<Record<BufferName, SharedBuffer>>;
  readonly timeoutMs: number;
  readonly hooks: WorkHooks;
}

/** A call on its way. */
interface ExpressCall {
  readonly operation: ExpressOperation;
  readonly sequence: number;
  readonly ordinal: number;
}

const completedWork = new CompletedWork();

export class ExpressCaller {
  readonly #options: ExpressCallerOptions;
  readonly #express: Express;
  readonly #bound = new Map<string, ExpressOperation>();
  readonly #sites = new CallSites();
  #ordinal = 0;
  /** Operations that the comm thread has taken over and not finished. */
  #handedOver = 0;
  /** The operation that is neither ended nor handed over. */
  #open: ExpressWork | undefined;

  constructor(options: ExpressCallerOptions) {
    this.#options = options;
    const { spec, own, firstSlot, wire, machine } = options;
    this.#express = new Express({ rank: spec.rank, size: spec.globalRanks.length, own, firstSlot, wire, machine });
  }

  /** The operation for a call, bound to its buffers; undefined when calls like this go through the comm thread. */
  bind(call: CollectiveCall, buffers: Partial<Record<BufferName, SharedBuffer>>): ExpressOperation | undefined {
    if (call.count * dtypeInfo(call.dtype).bytes > this.#options.bytesMax) return undefined;
    const prepared = this.#options.plans.prepare(call);
    if (!servesExpress(prepared, call)) return undefined;
    const key = keyOf(call, buffers);
    const known = this.#bound.get(key);
    if (known) return known;
    const views: ExpressBuffers = {};
    for (const name of Object.keys(buffers) as BufferName[]) {
      const buffer = buffers[name];
      if (buffer) views[name] = this.#options.view(buffer);
    }
    const bound = this.#express.bind(call, prepared, views);
    this.#bound.set(key, bound);
    if (this.#bound.size > boundMax) this.#dropOldest();
    return bound;
  }

  /** Notes in the control block how many calls this rank has made: what others are told when they wait in vain. */
  announce(calls: number): void {
    this.#options.own.called = calls;
  }

  /** Runs the operation as call number `sequence`. `request` is asked for only when it is not complete at once. */
  run(operation: ExpressOperation, sequence: number, request: () => ExpressRequest): Work {
    const { own, spinNs, trace } = this.#options;
    const call = { operation, sequence, ordinal: this.#ordinal++ };
    this.#open?.handOver();
    if (this.#handedOver > 0 || own.failed) return this.#handOver(call, request(), { begun: false });
    const startMs = trace.enabled ? trace.now() : 0;
    own.logCall(sequence, operation.contract);
    this.#express.begin(operation, sequence, call.ordinal);
    const status = this.#express.advance(operation, sequence, call.ordinal, { spinNs, sleepMs: 0 });
    if (status === 'done') {
      if (trace.enabled) this.#draw(call, startMs, this.#sites.current()());
      return completedWork;
    }
    if (status !== 'waiting') return this.#handOver(call, request(), { begun: true });
    this.#open = this.#openWork(call, request(), startMs);
    return this.#open;
  }

  close(): void {
    this.#options.wire.close();
  }

  #openWork(call: ExpressCall, request: ExpressRequest, startMs: number): ExpressWork {
    const { operation, sequence, ordinal } = call;
    const { trace } = this.#options;
    const drawn = trace.enabled ? this.#drawnWait(call, startMs, request.call.site) : undefined;
    const work = new ExpressWork({
      now: this.#options.client.now,
      // True when it is done.
      advance: () => {
        const { spinNs } = this.#options;
        drawn?.look();
        const done = this.#express.advance(operation, sequence, ordinal, { spinNs, sleepMs }) === 'done';
        if (done) {
          this.#open = undefined;
          if (drawn) this.#draw(call, drawn.end(), request.call.site);
          try {
            request.hooks.onSuccess?.();
          } finally {
            request.hooks.onSettled?.(false, undefined);
          }
        }
        return done;
      },
      handOver: () => {
        this.#open = undefined;
        drawn?.look();
        drawn?.end();
        return this.#handOver(call, request, { begun: true });
      },
    });
    // Whoever neither waits nor awaits still has it ended, and is warned and told of deadlines.
    queueMicrotask(() => {
      work.handOver();
    });
    return work;
  }

  #handOver({ operation, sequence, ordinal }: ExpressCall, request: ExpressRequest, { begun }: { readonly begun: boolean }): Work {
    const { spec, client } = this.#options;
    const { buffers, timeoutMs, call, hooks } = request;
    this.#handedOver += 1;
    const progress = begun ? { ...operation.progress } : undefined;
    return client.start(
      { type: 'express', group: spec.id, sequence, ordinal, progress, call, buffers, timeoutMs },
      `${call.kind} of group '${spec.name}'`,
      {
        ...hooks,
        onSettled: (touched, error) => {
          this.#handedOver -= 1;
          hooks.onSettled?.(touched || (error !== undefined && begun), error);
        },
      },
    );
  }

  #dropOldest(): void {
    for (const oldest of this.#bound.keys()) {
      this.#bound.delete(oldest);
      return;
    }
  }

  /** The wait for other ranks since `startMs`, drawn when it ends: when the last of them is seen to have called, or this thread waits
   *  no more. `end` gives that moment. */
  #drawnWait({ operation, sequence, ordinal }: ExpressCall, startMs: number, site: string | undefined): { look(): void; end(): number } {
    const { trace, spec } = this.#options;
    let last = spec.rank;
    let endMs: number | undefined;
    const end = (): number => {
      if (endMs !== undefined) return endMs;
      const span: CallSpan = { call: { ...operation.call, site }, algorithm: operation.algorithm, path: 'express' };
      trace.complete(waitName(trace, spec, span), startMs, 0, sequence, last === spec.rank ? Number.NaN : spec.globalRanks[last]);
      return (endMs = trace.now());
    };
    const look = (): void => {
      const late = this.#express.late(sequence, ordinal).find((rank) => rank !== spec.rank);
      if (late === undefined) end();
      else last = late;
    };
    return { look, end };
  }

  #draw({ operation: { call, algorithm }, sequence }: ExpressCall, startMs: number, site: string | undefined): void {
    const { trace, spec } = this.#options;
    const span: CallSpan = { call: { ...call, site: call.site ?? site }, algorithm, path: 'express' };
    trace.complete(workName(trace, spec, span, '(express)'), startMs, 0, sequence);
  }
}

interface ExpressWorkOptions {
  readonly now: () => number;
  /** Goes on for a moment; true when the operation is done. */
  readonly advance: () => boolean;
  readonly handOver: () => Work;
}

/** An operation that waits for others: on this thread while the caller waits for it, in the comm thread otherwise. */
class ExpressWork implements Work {
  readonly #options: ExpressWorkOptions;
  #done = false;
  #elsewhere: Work | undefined;

  constructor(options: ExpressWorkOptions) {
    this.#options = options;
  }

  get done(): boolean {
    return this.#done || this.handOver().done;
  }

  get error(): ShoalError | undefined {
    return this.#elsewhere?.error;
  }

  waitSync(timeoutMs = Infinity): void {
    checkKind('waitSync: timeoutMs', timeoutMs, 'number');
    const { now, advance } = this.#options;
    const startMs = now();
    const hereMs = Math.min(timeoutMs, waitHereMs);
    while (!this.#done && !this.#elsewhere && now() - startMs < hereMs) this.#done = advance();
    if (!this.#done) this.handOver().waitSync(Math.max(0, timeoutMs - (now() - startMs)));
  }

  then<A = void, B = never>(
    onFulfilled?: ((value: void) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    return Promise.resolve(this.handOver().then(onFulfilled, onRejected));
  }

  /** Leaves it to the comm thread, if it is not done. */
  handOver(): Work {
    if (this.#done) return completedWork;
    this.#elsewhere ??= this.#options.handOver();
    return this.#elsewhere;
  }
}

function keyOf(call: CollectiveCall, buffers: Partial<Record<BufferName, SharedBuffer>>): string {
  const places = (['data', 'input', 'output'] as const).map((each) => {
    const buffer = buffers[each];
    return buffer ? `${buffer.regionId}+${buffer.offset}+${buffer.bytes}` : '';
  });
  return [callKey(call), ...places].join(' ');
}
