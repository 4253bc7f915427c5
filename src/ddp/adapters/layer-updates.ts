/** The layers of a model between two passes: gradients go to the exchange as the backward pass has them, and the average of a layer is
 *  waited for, and applied, when the next forward pass comes to it. It must not know a framework.
 *
 *      give(l)    backward pass: the layer's gradients are on their way
 *      finish()   the pass is over. Buckets: all averages are there. Scheduled: none is waited for
 *      use(l)     forward pass: waits for the layer's averages, and applies them; drain(): of all layers
 *
 *  Each of these is a span on the timeline, by which `shoal tune --scheduler --predict` knows what the layers' passes take. */
import type { ScheduledGroup } from '../../group/caller/types.ts';
import type { ParameterSpec } from '../buckets.ts';
import type { ReducerGroup } from '../reducer-options.ts';
import { exchangeOf, type Exchange, type ExchangeOptions } from './exchange.ts';

export interface Layer {
  readonly name: string;
  readonly bytes: number;
  /** Indices of the layer's parameters in the exchange. */
  readonly parameters: readonly number[];
}

export interface LayerUpdatesOptions {
  /** All layers, in the order of the forward pass. */
  readonly layers: readonly Layer[];
  /** All parameters of all layers. */
  readonly parameters: readonly ParameterSpec[];
  readonly exchange: ExchangeOptions;
  /** Applies one step of the optimiser to this layer alone. `averages` are those of its parameters, valid until their next gradients. */
  readonly apply: (layer: number, averages: readonly Float32Array[]) => void;
  /** The group that averages, and on whose timeline the spans are drawn. */
  readonly group: ReducerGroup | ScheduledGroup;
}

type Details = Readonly<Record<string, string | number>>;

/** Name and details of a layer's spans. */
interface Marks {
  /** The layer's name, cut to what the name of a span can hold. */
  readonly name: string;
  readonly wait: Details;
  readonly gradient: Details;
}

export class LayerUpdates {
  readonly #options: LayerUpdatesOptions;
  readonly #exchange: Exchange;
  readonly #marks: readonly Marks[];
  /** Layers whose last averages are not applied yet. */
  readonly #pending = new Set<number>();
  /** Layers that this forward pass has reached. */
  readonly #used = new Set<number>();
  #isForward = false;
  #isUpdating = false;

  constructor(options: LayerUpdatesOptions) {
    this.#options = options;
    this.#exchange = exchangeOf(options.group, options.parameters, options.exchange);
    this.#marks = options.layers.map(({ name, bytes }, layer) => ({
      name: name.slice(0, 200),
      wait: { phase: 'wait', layer, bytes },
      gradient: { phase: 'gradient', layer, bytes },
    }));
  }

  forward<T>(pass: () => T): T {
    this.#used.clear();
    this.#isForward = true;
    try {
      return this.#span('forward pass', pass, { phase: 'forward' });
    } finally {
      this.#isForward = false;
    }
  }

  /** Called before the layer's parameters are used: brings them to their state after the last step.
   *  @throws ShoalError the error that ended the group, or one of the optimiser. */
  use(layer: number): void {
    // The optimiser's first update may read all parameters, which calls `use` again.
    if (this.#isUpdating) return;
    const isFirst = this.#isForward && !this.#used.has(layer);
    if (isFirst) this.#used.add(layer);
    else if (!this.#pending.has(layer)) return;
    const { apply } = this.#options;
    const { name, wait } = this.#marks[layer];
    const averages = this.#span(`wait for ${name}`, () => this.#take(layer), wait);
    if (averages === undefined) return;
    this.#isUpdating = true;
    try {
      apply(layer, averages);
    } finally {
      this.#isUpdating = false;
    }
  }

  /** Copies the gradients of the layer's parameters; undefined stands for a parameter that has none. */
  give(layer: number, gradients: readonly (Float32Array | undefined)[]): void {
    const { parameters } = this.#options.layers[layer];
    const { name, gradient: details } = this.#marks[layer];
    const given = (): void => {
      for (const [at, gradient] of gradients.entries()) if (gradient) this.#exchange.gradientReady(parameters[at], gradient);
    };
    this.#span(`gradient of ${name}`, given, details);
  }

  /** The backward pass is over. @returns the averages of all parameters, to be applied now; undefined when scheduled.
   *  @throws ShoalError `usage` for parameters without gradient; the error that ended the group. */
  finish(): readonly Float32Array[] | undefined {
    const { layers } = this.#options;
    this.#span('gradients averaged', () => this.#exchange.finish(), { phase: 'finish' });
    if (!this.#exchange.isScheduled) return layers.flatMap(({ parameters }) => parameters.map((index) => this.#exchange.take(index)));
    for (const layer of layers.keys()) this.#pending.add(layer);
    return undefined;
  }

  /** Waits for all averages that are on their way, and applies them. */
  drain(): void {
    for (const layer of [...this.#pending].sort((a, b) => a - b)) this.use(layer);
  }

  close(): void {
    this.#exchange.close();
  }

  /** The layer's averages, after waiting for them; undefined when none is on its way. */
  #take(layer: number): readonly Float32Array[] | undefined {
    if (!this.#pending.has(layer)) return undefined;
    const averages = this.#options.layers[layer].parameters.map((index) => this.#exchange.take(index));
    this.#pending.delete(layer);
    return averages;
  }

  #span<T>(name: string, run: () => T, details: Details): T {
    const { group } = this.#options;
    return group.span === undefined ? run() : group.span(name, run, details);
  }
}
