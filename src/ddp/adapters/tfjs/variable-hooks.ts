/** Observes variables of TensorFlow.js: tells before one is used, and when its gradient is there. All operations pass one
 *  function of the engine, which is wrapped while variables are hooked:
 *
 *      operation on a variable ─▶ onUse ─▶ while gradients are recorded: on `identity(variable)` instead, once per pass
 *      backward pass ─▶ the identity's gradient: of all uses together ─▶ onGradient
 *
 *  It must not know optimisers or ranks. */
import type * as tf from '@tensorflow/tfjs';

type Inputs = Record<string, tf.Tensor | undefined> | (tf.Tensor | undefined)[];

interface KernelParameters {
  readonly inputs: Inputs;
}

/** The parts of TensorFlow.js's engine that are used here; a process has one engine. */
export interface HookedEngine {
  readonly state: { readonly gradientDepth: number; kernelDepth: number };
  runKernelFunc(parameters: KernelParameters): unknown;
  isTapeOn(): boolean;
}

export interface VariableHooksOptions {
  readonly tf: typeof tf;
  readonly variables: readonly tf.Variable[];
  /** Called before the variable's value is read or replaced, by any code. */
  readonly onUse: (index: number) => void;
  /** Called while recording, with the whole gradient of a variable. */
  readonly onGradient: (index: number, gradient: tf.Tensor) => void;
}

/** Methods of a variable that reach its value without an operation. */
const methods = ['assign', 'data', 'dataSync', 'bytes'] as const;

export class VariableHooks {
  readonly #options: VariableHooksOptions;
  readonly #engine: HookedEngine;
  readonly #indices: ReadonlyMap<unknown, number>;
  readonly #run: HookedEngine['runKernelFunc'];
  readonly #wrapped: HookedEngine['runKernelFunc'];
  /** Identities of the variables that were used in this pass, by index. */
  readonly #identities = new Map<number, tf.Tensor>();
  #isRecording = false;
  #isClosed = false;

  constructor(options: VariableHooksOptions) {
    this.#options = options;
    this.#engine = options.tf.engine() as unknown as HookedEngine;
    this.#indices = new Map(options.variables.map((variable, index) => [variable, index]));
    // Other code may wrap this function as well: each wrapper calls the one before it.
    this.#run = this.#engine.runKernelFunc;
    this.#wrapped = (parameters) => this.#run.call(this.#engine, this.#isClosed ? parameters : this.#hooked(parameters));
    this.#engine.runKernelFunc = this.#wrapped;
    for (const [index, variable] of options.variables.entries()) this.#hookMethods(variable, index);
  }

  /** Calls `onGradient` for the gradients that `pass` computes at its end. */
  record<Result>(pass: () => Result): Result {
    this.#isRecording = true;
    try {
      return pass();
    } finally {
      this.#isRecording = false;
      for (const identity of this.#identities.values()) identity.dispose();
      this.#identities.clear();
    }
  }

  /** Runs `run` without recording: its operations are part of no gradient. */
  unrecorded(run: () => void): void {
    this.#engine.state.kernelDepth++;
    try {
      run();
    } finally {
      this.#engine.state.kernelDepth--;
    }
  }

  close(): void {
    this.#isClosed = true;
    if (this.#engine.runKernelFunc === this.#wrapped) this.#engine.runKernelFunc = this.#run;
    for (const variable of this.#options.variables) for (const method of methods) Reflect.deleteProperty(variable, method);
  }

  #hookMethods(variable: tf.Variable, index: number): void {
    for (const method of methods) {
      const own = variable[method] as (...given: unknown[]) => unknown;
      const hooked = (...given: unknown[]): unknown => {
        this.#options.onUse(index);
        return own.apply(variable, given);
      };
      Object.defineProperty(variable, method, { value: hooked, configurable: true, writable: true, enumerable: false });
    }
  }

  #hooked(parameters: KernelParameters): KernelParameters {
    let { inputs } = parameters;
    for (const [name, input] of Object.entries(inputs)) {
      const index = this.#indices.get(input);
      if (index === undefined) continue;
      this.#options.onUse(index);
      if (!this.#isRecording || !this.#engine.isTapeOn()) continue;
      if (inputs === parameters.inputs) inputs = Array.isArray(inputs) ? [...inputs] : { ...inputs };
      (inputs as Record<string, tf.Tensor>)[name] = this.#identityOf(index);
    }
    return inputs === parameters.inputs ? parameters : { ...parameters, inputs };
  }

  /** A tensor with the variable's values; all operations of this pass use it instead of the variable. */
  #identityOf(index: number): tf.Tensor {
    const known = this.#identities.get(index);
    if (known) return known;
    const { tf: library, variables, onGradient } = this.#options;
    const identity = library.customGrad((...given) => {
      const [variable] = given as tf.Tensor[];
      const gradFunc = (gradient: tf.Tensor): tf.Tensor => {
        // When gradients of gradients are computed, only the outermost one counts.
        if (this.#engine.state.gradientDepth === 0) onGradient(index, gradient);
        return gradient.clone();
      };
      return { value: variable.clone(), gradFunc };
    });
    // The identity's own input is the variable, which must not be replaced again.
    const isRecording = this.#isRecording;
    this.#isRecording = false;
    try {
      const value = library.keep(identity(variables[index]));
      this.#identities.set(index, value);
      return value;
    } finally {
      this.#isRecording = isRecording;
    }
  }
}
