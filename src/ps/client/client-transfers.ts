/** Pushes and pulls of whole parameters: checked, aggregated over local workers, cut into pieces, put into units. */
import { ShoalError } from '../../base/errors.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import type { GradientCodec } from '../compression/codec.ts';
import type { ParameterDirectory } from '../protocol/parameter-directory.ts';
import type { ServerConnection } from './server-connection.ts';
import type { LocalRound, LocalRounds, PushNumbers } from './local-rounds.ts';
import type { ClientOperation } from './client-operation.ts';
import { unitBytes, type ClientOptions, type KeylessInfo, type TransferRequest } from './client-options.ts';
import { ClientUnit, type Column, type PlanOptions } from './unit.ts';
import { sumDevices, type Residuals } from '../values/device-values.ts';
import type { ValueBlock, ValueCounters, ValueRef } from '../protocol/value-space.ts';
import type { RunState } from '../protocol/wire.ts';

export interface ClientContext {
  readonly options: ClientOptions;
  readonly directory: ParameterDirectory;
  readonly connections: readonly ServerConnection[];
  readonly local: LocalRounds;
  readonly rounds: PushNumbers;
  readonly counters: ValueCounters;
  /** The loss of compression so far, by piece. */
  readonly residuals: Residuals;
  /** True for values that servers refuse as a gradient: they hold NaN or infinity. */
  readonly isRefused: (dtype: DType, values: Uint8Array) => boolean;
  /** Ends the client: some rounds will never be complete. */
  readonly breakDown: (error: ShoalError) => void;
}

/** Several local workers whose pushes leave together. */
interface Bundle {
  readonly rounds: readonly LocalRound[];
  readonly blocks: readonly ValueBlock[];
  units: number;
  error: ShoalError | undefined;
}

export class ClientTransfers {
  readonly #context: ClientContext;
  /** The version and the settled round that were pulled last, by server and slot. */
  readonly #pulledVersion: number[][];
  readonly #pulledSettled: number[][];

  constructor(context: ClientContext) {
    this.#context = context;
    this.#pulledVersion = context.connections.map(() => []);
    this.#pulledSettled = context.connections.map(() => []);
  }

  /** @throws ShoalError `usage` for a parameter that is not known; then nothing has changed. */
  start(operation: ClientOperation, localWorker: number, { entries, priority, codec }: TransferRequest): void {
    const { directory, local, rounds, options } = this.#context;
    const parameters = entries.map(({ key }) => directory.require(key));
    const plan = new Plan(this.#context, { priority });
    const complete: LocalRound[] = [];
    for (let k = 0; k < entries.length; k++) {
      const entry = entries[k];
      const parameter = parameters[k];
      const { key, push, out } = entry;
      const round = push === undefined ? rounds.of(localWorker, parameter) : rounds.next(localWorker, parameter);
      if (push === undefined || options.localWorkers === 1) {
        plan.add({ parameter, round, push, out, codec });
        continue;
      }
      operation.expect();
      const whole = local.add(parameter, round, localWorker, { operation, key, entry, codec });
      if (whole !== undefined) complete.push(whole);
    }
    plan.launch([operation], (_, unit, server, states) => this.#note(unit, server, states));
    if (complete.length > 0) this.#startTogether(complete, priority);
  }

  /** Rounds that all local workers have pushed now. */
  #startTogether(complete: readonly LocalRound[], priority: number): void {
    const { options, directory, breakDown } = this.#context;
    const mixed = complete.find(({ parts }) => parts.some(({ entry }) => entry === undefined));
    if (mixed !== undefined) {
      return breakDown(
        new ShoalError('mismatch', `workers of one process pushed rows and all values of '${mixed.parts[0].key}' in one round`),
      );
    }
    const plan = new Plan(this.#context, { priority });
    const blocks: ValueBlock[] = [];
    for (const { parameter, round, parts } of complete) {
      const entries = parts.map(({ entry }) => entry!);
      const sources = entries.map(({ push }) => options.values.view(push!));
      const block = options.values.allocate(sources[0].byteLength);
      sumDevices(options.kernels, directory.parameter(parameter).dtype, block.view, sources);
      blocks.push(block);
      const [{ codec }] = parts;
      const alike = parts.every((part) => part.codec?.code === codec?.code);
      const out = entries.find((entry) => entry.out !== undefined)?.out;
      plan.add({ parameter, round, push: block.ref, out, codec: alike ? codec : undefined });
    }
    const operations = [...new Set(complete.flatMap(({ parts }) => parts.map(({ operation }) => operation)))];
    const bundle: Bundle = { rounds: complete, blocks, units: 0, error: undefined };
    bundle.units = plan.launch(operations, (error, unit, server, states) => {
      this.#note(unit, server, states);
      bundle.error ??= error;
      bundle.units--;
      if (bundle.units === 0) this.#finishBundle(bundle);
    });
  }

  #finishBundle({ rounds, blocks, error }: Bundle): void {
    const { values } = this.#context.options;
    for (const { parts } of rounds) {
      const outs = parts.flatMap(({ entry, operation }) => (entry?.out === undefined ? [] : [{ out: entry.out, operation }]));
      if (error === undefined && outs.length > 1) {
        const first = values.view(outs[0].out);
        for (const { out, operation } of outs.slice(1)) if (!operation.finished) values.view(out).set(first);
      }
      for (const { operation } of parts) operation.arrive(error);
    }
    for (const block of blocks) block.free();
  }

  /** Remembers what a worker has seen, for staleness. */
  #note(unit: ClientUnit, server: number, states: readonly RunState[]): void {
    if (!unit.pulls) return;
    const [versions, settled] = [this.#pulledVersion[server], this.#pulledSettled[server]];
    for (const [k, state] of states.entries()) {
      const { firstSlot, slots } = unit.stretches[k];
      for (let slot = firstSlot; slot < firstSlot + slots; slot++) {
        versions[slot] = state.version;
        settled[slot] = state.settled;
      }
    }
  }

  /** Asks for the state of a parameter. @returns what reads it when the operation has succeeded. */
  info(operation: ClientOperation, localWorker: number, key: string): () => KeylessInfo {
    const { directory, rounds } = this.#context;
    const parameter = directory.require(key);
    let [version, settled, staleness, workers] = [Infinity, Infinity, 0, Infinity];
    const plan = new Plan(this.#context, { priority: Infinity });
    plan.add({ parameter, round: rounds.before(parameter), push: undefined, out: undefined });
    plan.launch([operation], (_, unit, server, states) => {
      for (const [k, state] of states.entries()) {
        const { firstSlot: slot } = unit.stretches[k];
        version = Math.min(version, state.version);
        settled = Math.min(settled, state.settled);
        workers = Math.min(workers, state.workers);
        const seen = this.#pulledVersion[server][slot];
        // Own updates are no news.
        const own = state.settled - this.#pulledSettled[server][slot];
        if (seen !== undefined) staleness = Math.max(staleness, state.version - seen - own);
      }
    });
    return () => {
      const { dtype, shape } = directory.parameter(parameter);
      const pushed = rounds.of(localWorker, parameter);
      return { dtype, shape, version, ahead: Math.max(0, pushed - settled), staleness, workers };
    };
  }
}

interface Planned {
  readonly parameter: number;
  readonly round: number;
  readonly push: ValueRef | undefined;
  readonly out?: ValueRef | undefined;
  readonly codec?: GradientCodec | undefined;
}

/** Units of one operation, per server. */
export class Plan {
  readonly #context: ClientContext;
  readonly #options: PlanOptions;
  readonly #open: (ClientUnit | undefined)[];
  readonly #units: { unit: ClientUnit; server: number }[] = [];
  #finish: (error: ShoalError | undefined, unit: ClientUnit, server: number, states: readonly RunState[]) => void = () => undefined;
  #operations: readonly ClientOperation[] = [];

  constructor(context: ClientContext, options: PlanOptions) {
    this.#context = context;
    this.#options = options;
    this.#open = context.connections.map(() => undefined);
  }

  add({ parameter, round, push, out, codec }: Planned): void {
    const { directory, options, isRefused } = this.#context;
    const { dtype } = directory.parameter(parameter);
    const elementBytes = dtypeInfo(dtype).bytes;
    const end = directory.firstPiece[parameter + 1];
    // A parameter of one piece is whole at its server.
    const cut = end - directory.firstPiece[parameter] > 1;
    const nonFinite = cut && push !== undefined && this.#options.type === undefined && isRefused(dtype, options.values.view(push));
    let offset = 0;
    for (let piece = directory.firstPiece[parameter]; piece < end; piece++) {
      const server = directory.pieceServer[piece];
      const slot = directory.pieceSlot[piece];
      const bytes = directory.pieceElements[piece] * elementBytes;
      let unit = this.#open[server];
      if (unit === undefined || unit.bytes + bytes > unitBytes) unit = this.#openUnit(server);
      const encodes = codec !== undefined && push !== undefined && dtype === 'float32';
      const encoded = encodes ? this.#encode(codec, piece, { ...push, offset: push.offset + offset, bytes }) : undefined;
      unit.add({ slot, slab: directory.pieceSlab[piece], round, bytes, push, out, offset, nonFinite, encoded });
      offset += bytes;
    }
  }

  /** Hands the units over. @returns their number. */
  launch(
    operations: readonly ClientOperation[],
    finish: (error: ShoalError | undefined, unit: ClientUnit, server: number, states: readonly RunState[]) => void,
  ): number {
    const { connections } = this.#context;
    this.#operations = operations;
    this.#finish = finish;
    for (const { unit, server } of this.#units) {
      for (const operation of operations) operation.attach(unit, connections[server]);
      connections[server].enqueue(unit);
    }
    return this.#units.length;
  }

  /** Compresses a piece of a gradient; what is lost is added to the next one. */
  #encode(codec: GradientCodec, piece: number, ref: ValueRef): Column['encoded'] {
    const { options, residuals } = this.#context;
    const bytes = options.values.view(ref);
    const gradient = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    const encoded = new Uint8Array(codec.encodedBytes(gradient.length));
    residuals.encode(codec, piece, gradient, encoded);
    return { code: codec.code, bytes: encoded };
  }

  #openUnit(server: number): ClientUnit {
    const unit = new ClientUnit({
      plan: this.#options,
      values: this.#context.options.values,
      batches: this.#context.directory.batches,
      counters: this.#context.counters,
      frameBytes: this.#context.options.frameBytes,
      finish: (error, finished, states) => {
        this.#finish(error, finished, server, states);
        for (const operation of this.#operations) operation.arrive(error, finished);
      },
    });
    this.#open[server] = unit;
    this.#units.push({ unit, server });
    return unit;
  }
}
