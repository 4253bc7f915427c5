/** Hooks for a framework that Shoal does not know: a hand-written loop over layers. The engine orders computation and communication
 *  by the weights that they read and write; a scheduled group sends the first layers' gradients first.
 *
 *      forward i    reads weights i                    ◀─ waits only for the all-reduce of its own layer
 *      backward i   reads weights i ─▶ gradient i
 *      all-reduce i writes weights i, when it ends     ◀─ the hook; overlaps with backward i − 1 … 0 and the next forward
 *
 *      shoal run -n 2 examples/bring-your-own/framework.ts
 *
 *  Takes about 2 s. Every rank trains on its own points and ends with the same weights. */
import { initProcessGroup } from 'shoal';
import { DependencyEngine, type OnComplete, type Variable } from 'shoal/engine';

// ── the framework ───────────────────────────────────────────────────────────────────────────────────────────────────

class Layer {
  readonly weights: Float32Array;
  readonly gradient: Float32Array;
  readonly inputs: number;
  readonly isLast: boolean;
  input: Float32Array = new Float32Array(0);
  readonly output: Float32Array<ArrayBuffer>;

  constructor(inputs: number, outputs: number, isLast: boolean) {
    this.inputs = inputs;
    this.isLast = isLast;
    // The same on every rank.
    this.weights = Float32Array.from({ length: inputs * outputs }, (_, i) => Math.sin(i * 12.9898) / Math.sqrt(inputs));
    this.gradient = new Float32Array(inputs * outputs);
    this.output = new Float32Array(outputs);
  }

  forward(input: Float32Array): Float32Array {
    this.input = input;
    this.output.forEach((_, o) => {
      let sum = 0;
      for (let i = 0; i < this.inputs; i++) sum += this.weights[o * this.inputs + i] * input[i];
      this.output[o] = this.isLast ? sum : Math.tanh(sum);
    });
    return this.output;
  }

  /** Adds to the gradient. @returns the error of the layer before. */
  backward(error: Float32Array): Float32Array {
    const before = new Float32Array(this.inputs);
    error.forEach((e, o) => {
      const delta = this.isLast ? e : e * (1 - this.output[o] ** 2);
      for (let i = 0; i < this.inputs; i++) {
        this.gradient[o * this.inputs + i] += delta * this.input[i];
        before[i] += delta * this.weights[o * this.inputs + i];
      }
    });
    return before;
  }

  update(rate: number): void {
    this.weights.forEach((_, i) => (this.weights[i] -= rate * this.gradient[i]));
    this.gradient.fill(0);
  }
}

// ── the hooks ───────────────────────────────────────────────────────────────────────────────────────────────────────

const group = await initProcessGroup({ scheduling: { creditBytes: 64 * 1024, partitionBytes: 8 * 1024 } });
const engine = new DependencyEngine();
const sizes = [8, 64, 64, 1];
const layers = sizes.slice(1).map((outputs, k) => new Layer(sizes[k], outputs, k === sizes.length - 2));
const weightsOf = layers.map((_, k) => engine.newVariable(`weights ${k}`));
const gradientOf = layers.map((_, k) => engine.newVariable(`gradient ${k}`));

/** The gradient of a layer is complete: it is averaged over the ranks, and applied when it is there. */
function afterBackward(k: number): void {
  const reduce = (onComplete: OnComplete): void => {
    const work = group.allReduce(layers[k].gradient, { op: 'avg', name: `layer ${k}`, priority: k });
    const apply = (): void => {
      layers[k].update(0.2);
      onComplete();
    };
    work.then(apply, onComplete);
  };
  engine.pushAsync(reduce, [], [weightsOf[k], gradientOf[k]], { name: `all-reduce ${k}` });
}

/** Runs a part of the framework when what it uses is there. */
function whenReady(name: string, run: () => void, reads: readonly Variable[], writes: readonly Variable[]): void {
  engine.pushSync(run, reads, writes, { name });
}

// ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────

const [steps, batch] = [60, 8];
const flow = engine.newVariable('activations');
const losses: number[] = [];
for (let step = 0; step < steps; step++) {
  let loss = 0;
  for (let n = 0; n < batch; n++) {
    // Points of this rank alone.
    const x = Float32Array.from({ length: sizes[0] }, (_, i) => Math.cos((step * batch + n) * group.size + group.rank + i * i));
    let values: Float32Array = x;
    layers.forEach((layer, k) => whenReady(`forward ${k}`, () => (values = layer.forward(values)), [weightsOf[k]], [flow]));
    const last = layers.length - 1;
    whenReady('loss', () => {
      const error = values[0] - Math.sin(x[0] + x[1]);
      loss += error ** 2 / batch;
      values = Float32Array.of(error / batch);
    }, [], [flow]); // prettier-ignore
    for (let k = last; k >= 0; k--) {
      whenReady(`backward ${k}`, () => (values = layers[k].backward(values)), [weightsOf[k]], [flow, gradientOf[k]]);
      if (n === batch - 1) afterBackward(k);
    }
  }
  whenReady('note', () => losses.push(loss), [], [flow]);
}
await engine.waitForAll();

const sum = (from: number, to: number): number => losses.slice(from, to).reduce((all, each) => all + each, 0) / (to - from);
const checksum = layers.flatMap(({ weights }) => [...weights]).reduce((all, each) => all + each, 0);
console.log(`rank ${group.rank}: loss ${sum(0, 10).toFixed(4)} -> ${sum(steps - 10, steps).toFixed(4)}, weights ${checksum}`);
if (!(sum(steps - 10, steps) < sum(0, 10) / 2)) process.exitCode = 1;
await group.destroy();
