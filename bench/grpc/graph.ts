/** Graphs whose tensors travel over gRPC: a request is a call, as in TensorFlow, and calls between tasks stay on the fabric. */
import { fileURLToPath } from 'node:url';
import type { startGraphServer } from 'shoal/graph';
import { startTask } from '../../src/graph/cluster/start.ts';
import { FabricCarrier } from '../../src/graph/rpc/fabric-carrier.ts';
import type { RpcLink, RpcService, RpcStats, TensorSlot, TensorSource } from '../../src/graph/rpc/rpc.ts';
import type { FabricAddress } from '../../src/fabric/fabric.ts';
import type { SlotOutcome } from '../../src/rendezvous/protocol/tensor-carrier.ts';
import type { Served } from './calls.ts';
import { GrpcTensors, serveTensors, type Item } from './tensors.ts';

export class GrpcTensorsCarrier extends FabricCarrier {
  readonly #sources: LinkSource[] = [];
  #served: Served | undefined;

  override get stats(): Readonly<RpcStats> {
    const sum = { ...super.stats };
    for (const { stats } of this.#sources) for (const key of Object.keys(sum) as (keyof RpcStats)[]) sum[key] += stats[key];
    return sum;
  }

  override async listen(service: RpcService): Promise<string> {
    const fabric = await super.listen(service);
    const { device, incarnation, take } = service.tensors!;
    const asker = { caller: 'grpc', connection: 1 };
    const { rank, tensors } = JSON.parse(fabric) as { rank: number; tensors: FabricAddress };
    const { hostname } = new URL(tensors.candidates[0]);
    this.#served = await serveTensors(`${hostname}:0`, { rank, device, incarnation }, (...request) =>
      take.call(service.tensors, asker, ...request),
    );
    return JSON.stringify({ fabric, grpc: this.#served.address });
  }

  override async connect(text: string, task: string): Promise<RpcLink> {
    const { fabric, grpc } = JSON.parse(text) as { fabric: string; grpc: string };
    const link = await super.connect(fabric, task);
    const tensors = new LinkSource(grpc);
    this.#sources.push(tensors);
    void link.lost.then(() => tensors.close());
    return { tensors, call: (...call) => link.call(...call), lost: link.lost, close: () => link.close() };
  }

  override async close(): Promise<void> {
    await super.close();
    this.#served?.close();
  }
}

class LinkSource extends GrpcTensors implements TensorSource {
  receive(stepId: number, keys: readonly string[], signal?: AbortSignal): Promise<readonly TensorSlot[]> {
    return new Promise((resolve, reject) => {
      const cancel = this.recvFused(stepId, keys, { receive: (outcomes) => resolve(outcomes.map(slotOf)), fail: reject });
      signal?.addEventListener('abort', () => {
        cancel();
        reject(signal.reason as Error);
      });
    });
  }

  receiveEach(items: readonly Item[], onSlot: (index: number, slot: TensorSlot) => void): Promise<void> {
    return this.recvSome(items, (index, outcome) => onSlot(index, slotOf(outcome)));
  }
}

function slotOf(outcome: SlotOutcome): TensorSlot {
  return 'cause' in outcome ? outcome.cause : outcome.value;
}

/** `startGraphServer` over gRPC. */
export const startGrpcGraphServer = ((options: Parameters<typeof startTask>[0]) =>
  startTask(options, GrpcTensorsCarrier)) as unknown as typeof startGraphServer;

/** Environment of a process that starts such a task: its imports by the package's name get the sources, as here. */
export const grpcGraphEnvironment = { TSX_TSCONFIG_PATH: fileURLToPath(new URL('tsconfig.json', import.meta.url)) };
