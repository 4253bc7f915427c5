/** Reads a training from its traces: the times of each layer's passes, the time of a step, the rate of bytes.
 *
 *      forward pass │ wait l0 ▓ │ l0's forward │ wait l1 │ l1's forward …│ l1's backward │ gradient l1 │ l0's backward │ gradient l0 │ …
 *
 *  Spans are those that `shoal/ddp/tfjs` and staged models of `shoal/ddp/jax-js` leave on the main thread; the time between them
 *  is computation. Compilation and the like are in the first steps: of each figure the median counts. */
import { ShoalError } from '../../base/errors.ts';
import { median } from '../../base/numbers.ts';
import type { LayerTrace } from '../../scheduler/model-traces.ts';
import type { ChromeEvent, ChromeTrace } from '../../trace/chrome.ts';

export interface TracedTraining {
  /** Layers in the order of the forward pass. The first one has no parameters: it is the time between the passes. */
  readonly layers: readonly LayerTrace[];
  readonly workers: number;
  /** Time of a step as it was. */
  readonly stepMs: number;
  /** Number of whole steps, of all ranks. */
  readonly steps: number;
  /** Rate of a port, each way, while gradients were on their way; undefined: there are none on the timeline. */
  readonly gbitPerSecond: number | undefined;
}

interface Step {
  readonly stepMs: number;
  readonly betweenMs: number;
  /** Time of each layer's forward pass, and of its backward pass. */
  readonly forwardMs: readonly number[];
  readonly backwardMs: readonly number[];
}

/** Number of steps that compile and warm up, if there are enough. */
const warmup = 2;
const phases = new Set(['forward', 'wait', 'gradient', 'finish']);

/** @param traces of the ranks of one run. @throws ShoalError `usage` when there is no training in them. */
export function tracedTraining(traces: readonly ChromeTrace[]): TracedTraining {
  const sizes = new Map<number, { name: string; bytes: number }>();
  const steps = traces.flatMap((trace) => stepsOf(trace.traceEvents.filter(isPhase), sizes));
  if (steps.length === 0) {
    const message =
      'the traces have no two steps of a training by layers; record one by minimize of shoal/ddp/tfjs or by a staged model of shoal/ddp/jax-js, with SHOAL_TRACE=<folder>';
    throw new ShoalError('usage', message);
  }
  const middle = (figure: (step: Step) => number): number => median(steps.map(figure));
  const layers = [...sizes]
    .sort(([a], [b]) => a - b)
    .map(([layer, { name, bytes }]) => ({
      name,
      bytes,
      forwardMs: middle(({ forwardMs }) => forwardMs[layer] ?? 0),
      backwardMs: middle(({ backwardMs }) => backwardMs[layer] ?? 0),
    }));
  const between = { name: '(between passes)', bytes: 0, forwardMs: middle(({ betweenMs }) => betweenMs), backwardMs: 0 };
  const rates = traces.flatMap((trace) => rateOf(trace.traceEvents, traces.length) ?? []);
  return {
    layers: [between, ...layers],
    workers: traces.length,
    stepMs: middle(({ stepMs }) => stepMs),
    steps: steps.length,
    gbitPerSecond: rates.length === 0 ? undefined : median(rates),
  };
}

/** Whole steps of one rank. @param sizes gets the layers that are found. */
function stepsOf(spans: readonly ChromeEvent[], sizes: Map<number, { name: string; bytes: number }>): Step[] {
  const sorted = spans.toSorted((a, b) => a.ts - b.ts || (b.dur ?? 0) - (a.dur ?? 0));
  const starts = sorted.flatMap((span, at) => (phaseOf(span) === 'forward' ? [at] : []));
  const steps = starts.slice(0, -1).map((from, at) => stepOf(sorted.slice(from, starts[at + 1] + 1), sizes));
  return steps.length > 2 * warmup ? steps.slice(warmup) : steps;
}

/** Times of one step. @param spans from the forward pass of the step to that of the next one. */
function stepOf([forward, ...rest]: readonly ChromeEvent[], sizes: Map<number, { name: string; bytes: number }>): Step {
  const forwardEnd = endOf(forward);
  const step = { betweenMs: 0, forwardMs: [] as number[], backwardMs: [] as number[] };
  let layer: number | undefined;
  let at = forward.ts;
  /** Counts the time until then as computation. */
  const until = (time: number, add: (ms: number) => void): void => {
    if (time > at) add((time - at) / 1000);
    at = Math.max(at, time);
  };
  const between = (ms: number): void => void (step.betweenMs += ms);
  const ofForward = (ms: number): void => (layer === undefined ? between(ms) : addTo(step.forwardMs, layer, ms));
  for (const span of rest) {
    const own = layerOf(span);
    if (own !== undefined) sizes.set(own, { name: span.name.replace(/^(wait for|gradient of) /, ''), bytes: Number(span.args?.['bytes']) });
    if (endOf(span) <= forwardEnd) {
      until(span.ts, ofForward);
      layer = own;
    } else {
      until(forwardEnd, ofForward);
      until(span.ts, (ms) => (phaseOf(span) === 'gradient' && own !== undefined ? addTo(step.backwardMs, own, ms) : between(ms)));
    }
    // The next step's forward pass is not part of this step.
    if (phaseOf(span) !== 'forward') at = Math.max(at, endOf(span));
  }
  return { ...step, stepMs: (rest[rest.length - 1].ts - forward.ts) / 1000 };
}

/** Rate of all-reduces: bytes by the time in which at least one was under way. */
function rateOf(events: readonly ChromeEvent[], workers: number): number | undefined {
  const scheduled = events.filter(({ ph, name }) => ph === 'X' && name === 'all-reduce COMMUNICATION');
  const plain = events.filter(({ ph, cat, name }) => ph === 'X' && cat === 'collective' && /^all-reduce (?!wait)/.test(name));
  const spans = (scheduled.length > 0 ? scheduled : plain).toSorted((a, b) => a.ts - b.ts);
  let [bytes, us, end] = [0, 0, -Infinity];
  for (const span of spans) {
    bytes += Number(span.args?.['bytes'] ?? 0);
    us += Math.max(0, endOf(span) - Math.max(span.ts, end));
    end = Math.max(end, endOf(span));
  }
  const rate = (((2 * (workers - 1)) / workers) * bytes * 8) / (us * 1000);
  return Number.isFinite(rate) && rate > 0 ? rate : undefined;
}

function isPhase(span: ChromeEvent): boolean {
  const { ph, cat } = span;
  if (ph !== 'X' || cat !== 'user') return false;
  const phase = phaseOf(span);
  return phase !== undefined && phases.has(phase) && (phase === 'forward' || phase === 'finish' || layerOf(span) !== undefined);
}

function phaseOf({ args }: ChromeEvent): string | undefined {
  const phase = args?.['phase'];
  return typeof phase === 'string' ? phase : undefined;
}

/** The layer of an event; undefined when it has no valid one. */
function layerOf({ args }: ChromeEvent): number | undefined {
  const [layer, bytes] = [args?.['layer'], args?.['bytes']];
  const isWhole = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;
  return isWhole(layer) && isWhole(bytes) && (layer as number) < layersMax ? (layer as number) : undefined;
}

const layersMax = 65_536;

function endOf({ ts, dur = 0 }: ChromeEvent): number {
  return ts + dur;
}

function addTo(list: number[], index: number, ms: number): void {
  list[index] = (list[index] ?? 0) + ms;
}
