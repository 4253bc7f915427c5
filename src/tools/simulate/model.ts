/** The model of a simulated cluster: the cost model's rates per link class, ports, and the engines that do the work. docs/simulation.md
 *  compares the presets with the figures that they are fitted to. It must not know plans. */
import { ShoalError } from '../../base/errors.ts';
import { defaultCostModel, type CostModel } from '../../plan/cost.ts';

export interface SimulationModel extends CostModel {
  /** Ports of a host; rank i of a host uses port i mod ports. `networkByte` is the rate of one port and direction. */
  readonly portsPerHost: number;
  /** Flows take turns on a port after this many bytes. */
  readonly quantumBytes: number;
  /** Unit that takes turns on a port: all messages between two ranks, or each channel between them. */
  readonly flows: 'pair' | 'channel';
  /** Engine that copies and reduces: the thread that handles messages too, or one of its own. */
  readonly engine: 'thread' | 'own';
}

/** Rates fitted to the figures of Fairring's document. */
const gpuCluster = {
  /** Descriptor, request, read: 173 ms without overlap against 109 with. */
  networkLatency: 200e-6,
  /** 256 ranks: 64 slices × 124 messages per rank in 262 ms. */
  networkOverhead: 33e-6,
  /** 64 × 25 MiB on 8 × 8 in 109 ms, overlapped, means 2·7/8·1.68 GB per host and direction. */
  networkByte: 1 / 27e9,
  /** 0.31 ms for 126 hops of tiny messages. */
  hostLatency: 1.5e-6,
  /** 64 × 25 MiB on one host in 26 ms. */
  hostByte: 1 / 130e9,
  selfByte: 1 / 300e9,
  reduceByte: 1 / 600e9,
  portsPerHost: 1,
  quantumBytes: 64 * 1024,
  engine: 'own',
} as const;

/** Presets, in the order of the documentation. */
export const presets = {
  /** Shoal over TCP at 10 Gbit/s: the cost model that selection follows. */
  tcp: { ...defaultCostModel, portsPerHost: 1, quantumBytes: 64 * 1024, flows: 'pair', engine: 'thread' },
  /** The cluster of Fairring's document, 8 GPUs per host: every message is set up by threads of the host at both ends. Each direction has its
   *  own pipe in the original; they share the port. */
  'gpu-cluster': { ...gpuCluster, flows: 'channel' },
  /** The same cluster under the incumbent library: the devices drive the messages, and the ring reaches 20 GB/s per host: 1,600 MiB in 182
   *  ms, 25 MiB after 25 MiB in 2.6 ms. */
  'gpu-cluster-device': { ...gpuCluster, networkLatency: 5e-6, networkOverhead: 0.5e-6, networkByte: 1 / 20e9, flows: 'pair' },
} as const satisfies Record<string, SimulationModel>;

/** Bytes below which a message costs more of its sender's and receiver's time than of the wire's: a floor for shards. A power of two. */
export function shardFloorBytes(model: SimulationModel, ranksPerHost: number): number {
  const perRank = (model.networkByte * ranksPerHost) / model.portsPerHost;
  return 2 ** Math.round(Math.log2(Math.max(64, model.networkOverhead / perRank)));
}

/** @throws ShoalError `usage` for impossible rates. */
export function checkModel(model: SimulationModel): void {
  for (const [name, value] of Object.entries(model)) {
    if (typeof value !== 'number') continue;
    if (!Number.isFinite(value) || value < 0) throw new ShoalError('usage', `${name} must be a finite number of at least 0, not ${value}`);
  }
  if (!Number.isSafeInteger(model.portsPerHost) || model.portsPerHost < 1)
    throw new ShoalError('usage', `portsPerHost must be a whole number of at least 1, not ${model.portsPerHost}`);
  if (model.quantumBytes < 1) throw new ShoalError('usage', `quantumBytes must be at least 1, not ${model.quantumBytes}`);
}
