/** A rendezvous worker whose tensors travel over gRPC: the part of `RendezvousWorker` that benchmarks use, on the same tables of steps. */
import { systemClock } from '../../src/base/clock.ts';
import type { WorkerIdentity } from '../../src/rendezvous/carriers/tensor-connection.ts';
import { WorkerCore } from '../../src/rendezvous/carriers/worker-core.ts';
import { WorkerDevices } from '../../src/rendezvous/device/worker-devices.ts';
import { WorkerStep } from '../../src/rendezvous/worker-step.ts';
import type { Served } from './calls.ts';
import { GrpcTensors, serveTensors } from './tensors.ts';

export class GrpcWorker {
  readonly core: WorkerCore;
  readonly #served: Served;
  readonly #devices = new WorkerDevices();

  private constructor(core: WorkerCore, served: Served) {
    this.core = core;
    this.#served = served;
  }

  /** @param host to listen on. */
  static async start(rank: number, host: string, stepsMax = 1024): Promise<GrpcWorker> {
    const core = new WorkerCore({ rank, device: `/job:worker/task:${rank}/device:CPU:0`, incarnation: BigInt(rank + 1) }, { stepsMax });
    return new GrpcWorker(core, await serveTensors(`${host}:0`, core.self, (...request) => core.take(...request)));
  }

  get address(): string {
    return this.#served.address;
  }

  /** Connects to another worker. Each end asks over a connection of its own. */
  async connect(address: string): Promise<WorkerIdentity> {
    const tensors = new GrpcTensors(address);
    const peer = await tensors.identify();
    this.core.attach(peer, tensors);
    return peer;
  }

  beginStep(stepId: number): WorkerStep {
    return new WorkerStep(this.core, this.#devices, stepId, { clock: systemClock, timeoutMs: 300_000 });
  }

  /** Ends the worker's connections as a crash would. */
  crash(): void {
    this.#served.close();
  }

  async close(): Promise<void> {
    await this.core.close();
    this.#served.close();
  }
}
