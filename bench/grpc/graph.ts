/** Graphs whose tensors travel over gRPC: a request is a call, as in TensorFlow, and calls between tasks stay on the fabric. */
import { fileURLToPath } from 'node:url';
import type { startGraphServer } from 'shoal/graph';
import { startTask } from '../../src/graph/cluster/start.ts';
import { TaskTensors, type TaskTensorsOptions, type TensorAddress } from '../../src/graph/cluster/task-tensors.ts';
import { ShoalError } from '../../src/base/errors.ts';
import type { FusedWaiter, SlotOutcome, TensorCarrier } from '../../src/rendezvous/protocol/tensor-carrier.ts';
import type { Cancel, Waiter } from '../../src/rendezvous/table/rendezvous.ts';
import type { TensorValue } from '../../src/rendezvous/value/tensor-value.ts';
import type { Served } from './calls.ts';
import { GrpcTensors, serveTensors, type Item } from './tensors.ts';

interface GrpcAddress extends TensorAddress {
  readonly grpc: string;
}

/** Tensors of one task over gRPC. */
export class GrpcTaskTensors extends TaskTensors {
  readonly #options: TaskTensorsOptions;
  #served: Served | undefined;

  constructor(options: TaskTensorsOptions) {
    super(options);
    this.#options = options;
  }

  override async listen(): Promise<GrpcAddress> {
    const address = await super.listen();
    const { hostname } = new URL(address.tensors.candidates[0]);
    const { self, sent } = this.core;
    const asker = { worker: this, isOver: false };
    this.#served = await serveTensors(`${hostname}:0`, self, (...request) => sent.take(...request, asker));
    return { ...address, grpc: this.#served.address };
  }

  protected override carrierTo(task: string): TensorCarrier {
    const { addressOf, recvSome } = this.#options;
    return new TaskCalls(task, async () => new GrpcTensors(((await addressOf(task)) as GrpcAddress).grpc), recvSome);
  }

  override async close(): Promise<void> {
    await super.close();
    this.#served?.close();
  }
}

interface Gathered {
  readonly item: Item;
  readonly waiter: Waiter<TensorValue>;
  isOver: boolean;
}

/** Receives from one task. With `recvSome`, those of one turn are one call. */
class TaskCalls implements TensorCarrier {
  readonly description: string;
  readonly #tensors: Promise<GrpcTensors>;
  readonly #recvSome: boolean;
  #gathered: Gathered[] = [];

  constructor(description: string, open: () => Promise<GrpcTensors>, recvSome: boolean) {
    this.description = description;
    this.#tensors = open();
    this.#recvSome = recvSome;
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel {
    if (!this.#recvSome) return this.#ask(waiter, (tensors) => tensors.recv(stepId, key, waiter));
    const gathered: Gathered = { item: [stepId, key], waiter, isOver: false };
    if (this.#gathered.push(gathered) === 1) queueMicrotask(() => void this.#askSome());
    return () => {
      gathered.isOver = true;
    };
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    return this.#ask(waiter, (tensors) => tensors.recvFused(stepId, keys, waiter));
  }

  endStep(): void {}

  async close(): Promise<void> {
    await (await this.#tensors).close();
  }

  #ask({ fail }: { fail(cause: ShoalError): void }, start: (tensors: GrpcTensors) => Cancel): Cancel {
    let isOver = false;
    let cancel: Cancel = () => {
      isOver = true;
    };
    const begin = async (): Promise<void> => {
      try {
        const tensors = await this.#tensors;
        if (!isOver) cancel = start(tensors);
      } catch (thrown) {
        fail(ShoalError.from(thrown));
      }
    };
    void begin();
    return () => cancel();
  }

  async #askSome(): Promise<void> {
    const all = this.#gathered;
    this.#gathered = [];
    const settle = (each: Gathered, outcome: SlotOutcome): void => {
      if (each.isOver) return;
      each.isOver = true;
      if ('cause' in outcome) each.waiter.fail(outcome.cause);
      else each.waiter.receive(outcome.value);
    };
    try {
      const tensors = await this.#tensors;
      await tensors.recvSome(
        all.map(({ item }) => item),
        (index, outcome) => settle(all[index], outcome),
      );
    } catch (thrown) {
      for (const each of all) settle(each, { cause: ShoalError.from(thrown) });
    }
  }
}

/** `startGraphServer` over gRPC. */
export const startGrpcGraphServer = ((options: Parameters<typeof startTask>[0]) =>
  startTask(options, GrpcTaskTensors)) as unknown as typeof startGraphServer;

/** Environment of a process that starts such a task: its imports by the package's name get the sources, as here. */
export const grpcGraphEnvironment = { TSX_TSCONFIG_PATH: fileURLToPath(new URL('tsconfig.json', import.meta.url)) };
