/** Trainings replayed on virtual time: workers compute the layers of a trace, and their gradients go through real cores over a
 *  network that consists only of rates. Nothing is sent.
 *
 *      worker    backward, last layer first ─▶ ready ─▶ core ─▶ wire out ─▶ servers: all workers' ─▶ core ─▶ wire in ─▶ forward
 *
 *  In either order each layer of the next forward pass waits for its own gradient alone. `fifo`: whole tensors, in the order in
 *  which they become ready. `scheduled`: in parts, those first that the forward pass needs first. */
import { VirtualClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { describeValue } from '../../base/schema.ts';
import { Core } from '../../scheduler/core.ts';
import type { Part } from '../../scheduler/task-parts.ts';
import { Task, type TaskOptions } from '../../scheduler/task.ts';
import type { LayerTrace } from '../../scheduler/model-traces.ts';

export interface ReplayOptions {
  readonly layers: readonly LayerTrace[];
  /** Number of workers, each with a network port of its own. */
  readonly workers: number;
  /** `parameter-server`: as many servers as workers, on hosts of their own. */
  readonly exchange: 'parameter-server' | 'all-reduce';
  /** Placement on parameter servers. `balanced` (default): each tensor, or part, is on all of them alike. `whole`: each tensor is
   *  on one, the next one on the next, as TensorFlow's `replica_device_setter` places variables; no port sends less for one that
   *  another port keeps waiting. */
  readonly placement?: 'balanced' | 'whole';
  readonly order: 'fifo' | 'scheduled';
  /** Rate of a port, each way, that programs get. */
  readonly gbitPerSecond: number;
  /** Time of each message, or all-reduce, after its bytes, while the wire is used by others that the credit admits. Default: 50. */
  readonly overheadUs?: number;
  /** Partition and credit. Default: 4,000,000 and 16,000,000. */
  readonly partitionBytes?: number;
  readonly creditBytes?: number;
  /** Variation of a layer's time between workers and steps, as a share of it. Default: 0.03. */
  readonly jitter?: number;
  /** Number of steps that count; two more come before. Default: 6. */
  readonly steps?: number;
  readonly seed?: number;
}

export interface ReplayResult {
  /** Mean time of the steps that count. */
  readonly stepMs: number;
  /** Part of it for the passes alone. */
  readonly computeMs: number;
  /** Part of it for the bytes of a step at the busiest port, each way. */
  readonly networkMs: number;
  /** Time of a step that no order, partition or placement can beat. */
  readonly boundMs: number;
}

const warmup = 2;

/** One direction of a port: later transfers wait. */
class Wire {
  readonly #clock: VirtualClock;
  readonly #overheadMs: number;
  #freeAt = 0;

  constructor(clock: VirtualClock, overheadUs = 50) {
    this.#clock = clock;
    this.#overheadMs = overheadUs / 1000;
  }

  use(ms: number, onEnd: () => void): void {
    this.#freeAt = Math.max(this.#freeAt, this.#clock.now()) + ms;
    this.#clock.setTimer(this.#freeAt + this.#overheadMs - this.#clock.now(), onEnd);
  }

  /** Sends from here to another port: the bytes arrive there meanwhile, or later where others arrive as well. */
  useWith(there: Wire, ms: number, onEnd: () => void): void {
    this.#freeAt = Math.max(this.#freeAt, this.#clock.now()) + ms;
    this.#clock.setTimer(this.#freeAt - ms - this.#clock.now(), () => there.use(ms, onEnd));
  }
}

interface TransferOptions extends TaskOptions {
  readonly isLate: boolean;
  readonly start: (task: TransferTask) => void;
}

class TransferTask extends Task {
  readonly #options: TransferOptions;

  constructor(options: TransferOptions) {
    super(options);
    this.#options = options;
  }

  protected part({ bytes }: Part): TransferTask {
    const { onEnd: _onEnd, ...rest } = this.#options;
    return new TransferTask({ ...rest, bytes });
  }

  protected override onPrepare(): void {
    if (!this.#options.isLate) this.notifyReady();
  }

  protected onDo(): void {
    this.#options.start(this);
  }
}

/** The way in which gradients that all workers have come back to each as their average. */
interface Exchange {
  /** The gradient is there on a worker. */
  ready(worker: number, layer: number, onArrived: () => void): void;
}

/** Milliseconds that the bytes take. */
function transferMs({ gbitPerSecond }: ReplayOptions, bytes: number): number {
  return (bytes * 8) / (gbitPerSecond * 1e6);
}

/** Milliseconds of a ring's all-reduce: each port passes on all bytes but one share, twice. */
function allReduceMs(options: ReplayOptions, bytes: number): number {
  return transferMs(options, (2 * bytes * (options.workers - 1)) / options.workers);
}

function coreOf(options: ReplayOptions, clock: VirtualClock): Core {
  const { order, partitionBytes = 4e6, creditBytes = 16e6 } = options;
  const whole = Number.MAX_SAFE_INTEGER;
  const sizes = order === 'fifo' ? { partitionBytes: whole, creditBytes: whole } : { partitionBytes, creditBytes };
  const core = new Core({ clock, ...sizes, timeoutMs: 1e9 });
  core.start();
  return core;
}

class Servers implements Exchange {
  readonly #options: ReplayOptions;
  readonly #workers: readonly { readonly core: Core; readonly out: Wire; readonly in: Wire }[];
  /** Ports of each server, where they are not all alike. */
  readonly #ports: readonly { readonly in: Wire; readonly out: Wire }[];
  /** Pulls that wait for all workers' pushes of the part, by layer. */
  readonly #waiting = new Map<number, { readonly pulls: TransferTask[][]; readonly pushed: number[] }>();

  constructor(options: ReplayOptions, clock: VirtualClock) {
    this.#options = options;
    const { overheadUs } = options;
    const worker = () => ({ core: coreOf(options, clock), out: new Wire(clock, overheadUs), in: new Wire(clock, overheadUs) });
    this.#workers = Array.from({ length: options.workers }, worker);
    const servers = options.placement === 'whole' ? options.workers : 0;
    this.#ports = Array.from({ length: servers }, () => ({ in: new Wire(clock, overheadUs), out: new Wire(clock, overheadUs) }));
  }

  ready(worker: number, layer: number, onArrived: () => void): void {
    const { layers, order } = this.#options;
    const { core, out, in: inwards } = this.#workers[worker];
    const { name, bytes } = layers[layer];
    const priority = order === 'fifo' ? 0 : layer;
    const waiting = this.#waiting.get(layer) ?? { pulls: [], pushed: [] };
    this.#waiting.set(layer, waiting);
    const server = this.#ports.length > 0 ? this.#ports[layer % this.#ports.length] : undefined;
    const transfer = (task: TransferTask, from: Wire | undefined, to: Wire | undefined, onEnd: () => void): void => {
      const ms = transferMs(this.#options, task.bytes);
      const ended = (): void => {
        task.notifyFinish();
        onEnd();
      };
      if (from !== undefined && to !== undefined) from.useWith(to, ms, ended);
      else (from ?? to)?.use(ms, ended);
    };
    const pull = new TransferTask({
      ...{ name, bytes, priority, operation: 'pull', link: 'pull', isLate: true },
      start: (task) => transfer(task, server?.out, inwards, () => undefined),
      onEnd: onArrived,
    });
    core.post(pull);
    const parts = (pull.children.length > 0 ? pull.children : [pull]) as TransferTask[];
    waiting.pulls.push(parts);
    core.post(
      new TransferTask({
        ...{ name, bytes, priority, operation: 'push', link: 'push', isLate: false },
        start: (task) => transfer(task, out, server?.in, () => this.#pushed(layer, task.index)),
      }),
    );
  }

  #pushed(layer: number, part: number): void {
    const waiting = this.#waiting.get(layer);
    if (waiting === undefined) return;
    waiting.pushed[part] = (waiting.pushed[part] ?? 0) + 1;
    if (waiting.pushed[part] < this.#options.workers) return;
    for (const pulls of waiting.pulls) pulls[part].notifyReady();
    const parts = waiting.pulls[0].length;
    if (waiting.pushed.filter((count) => count === this.#options.workers).length === parts) this.#waiting.delete(layer);
  }
}

/** All-reduces, which have one order for all workers, so one core. */
class AllReduces implements Exchange {
  readonly #options: ReplayOptions;
  readonly #core: Core;
  readonly #wire: Wire;
  readonly #waiting = new Map<number, (() => void)[]>();

  constructor(options: ReplayOptions, clock: VirtualClock) {
    this.#options = options;
    this.#core = coreOf(options, clock);
    this.#wire = new Wire(clock, options.overheadUs);
  }

  ready(_worker: number, layer: number, onArrived: () => void): void {
    const options = this.#options;
    const { layers, order, workers } = options;
    const waiting = [...(this.#waiting.get(layer) ?? []), onArrived];
    this.#waiting.set(layer, waiting);
    if (waiting.length < workers) return;
    this.#waiting.delete(layer);
    const { name, bytes } = layers[layer];
    this.#core.post(
      new TransferTask({
        ...{ name, bytes, priority: order === 'fifo' ? 0 : layer, operation: 'all-reduce', isLate: false },
        start: (task) => this.#wire.use(allReduceMs(options, task.bytes), () => task.notifyFinish()),
        onEnd: () => waiting.forEach((arrived) => arrived()),
      }),
    );
  }
}

interface WorkerOptions {
  readonly layers: readonly LayerTrace[];
  readonly clock: VirtualClock;
  readonly stretch: () => number;
  readonly ready: (layer: number, onArrived: () => void) => void;
  readonly steps: number;
}

/** One worker: forward passes wait for each layer's gradient of the step before. */
class Worker {
  readonly #options: WorkerOptions;
  readonly #arrived: boolean[];
  readonly endsMs: number[] = [];
  #forwardLayer = 0;
  #isBusy = false;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#arrived = options.layers.map(() => true);
  }

  forward(): void {
    const { layers, clock, stretch, steps } = this.#options;
    if (this.#isBusy || !this.#arrived[this.#forwardLayer]) return;
    this.#isBusy = true;
    clock.setTimer(layers[this.#forwardLayer].forwardMs * stretch(), () => {
      this.#isBusy = false;
      this.#forwardLayer++;
      if (this.#forwardLayer < layers.length) {
        this.forward();
        return;
      }
      this.endsMs.push(clock.now());
      if (this.endsMs.length < steps) this.#backward(layers.length - 1);
    });
  }

  #backward(layer: number): void {
    const { layers, clock, stretch, ready } = this.#options;
    this.#isBusy = true;
    clock.setTimer(layers[layer].backwardMs * stretch(), () => {
      // A layer without parameters sends nothing.
      if (layers[layer].bytes > 0) {
        this.#arrived[layer] = false;
        ready(layer, () => {
          this.#arrived[layer] = true;
          this.forward();
        });
      }
      if (layer > 0) {
        this.#backward(layer - 1);
        return;
      }
      this.#isBusy = false;
      this.#forwardLayer = 0;
      this.forward();
    });
  }
}

/** @throws ShoalError `usage` for an impossible world or network. */
export function replay(options: ReplayOptions): ReplayResult {
  const { layers, workers, gbitPerSecond, exchange, jitter = 0.03, steps = 6, seed = 1 } = options;
  if (layers.length === 0) throw new ShoalError('usage', 'replay: a model has at least one layer');
  for (const [name, value] of Object.entries({ workers, steps })) {
    if (!Number.isSafeInteger(value) || value < 1)
      throw new ShoalError('usage', `replay: ${name} is a positive integer, not ${describeValue(value)}`);
  }
  if (!(gbitPerSecond > 0)) throw new ShoalError('usage', `replay: gbitPerSecond is positive, not ${describeValue(gbitPerSecond)}`);
  const clock = new VirtualClock();
  const random = seededRandom(seed);
  const shared = exchange === 'all-reduce' ? new AllReduces(options, clock) : new Servers(options, clock);
  const all = Array.from(
    { length: workers },
    (_, worker) =>
      new Worker({
        layers,
        clock,
        stretch: () => 1 + jitter * (2 * random.next() - 1),
        ready: (layer, onArrived) => shared.ready(worker, layer, onArrived),
        steps: steps + warmup,
      }),
  );
  for (const worker of all) worker.forward();
  clock.advance(1e9);
  const ends = all[0].endsMs;
  const bytes = layers.reduce((sum, layer) => sum + layer.bytes, 0);
  const msOf = (count: number): number => (exchange === 'all-reduce' ? allReduceMs : transferMs)(options, count);
  return {
    stepMs: (ends[ends.length - 1] - ends[warmup - 1]) / steps,
    computeMs: layers.reduce((sum, { forwardMs, backwardMs }) => sum + forwardMs + backwardMs, 0),
    networkMs: options.placement === 'whole' && exchange === 'parameter-server' ? msOf(busiestServer(layers, workers)) : msOf(bytes),
    boundMs: boundOf(layers, msOf),
  };
}

/** Bytes of a step, each way, when each tensor is on one server. */
function busiestServer(layers: readonly LayerTrace[], workers: number): number {
  const loads = Array.from({ length: workers }, () => 0);
  for (const [index, layer] of layers.entries()) loads[index % workers] += workers * layer.bytes;
  return Math.max(...loads);
}

/** Bound of a step: its passes, or its bytes; or the rest when the backward pass has come to a layer: its gradient and all
 *  earlier layers', none of which was there before, and the forward pass from that layer on, which waits for all of them. */
function boundOf(layers: readonly LayerTrace[], msOf: (bytes: number) => number): number {
  let bound = msOf(layers.reduce((sum, { bytes }) => sum + bytes, 0));
  let [backwardMs, forwardMs] = [0, 0];
  let earlierBytes = layers.reduce((sum, { bytes }) => sum + bytes, 0);
  for (const layer of layers.toReversed()) {
    backwardMs += layer.backwardMs;
    forwardMs += layer.forwardMs;
    bound = Math.max(bound, backwardMs + msOf(earlierBytes) + forwardMs);
    earlierBytes -= layer.bytes;
  }
  return bound;
}
