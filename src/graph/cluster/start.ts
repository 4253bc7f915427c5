/** Starts the graph server of this process, from the environment that its launcher made. */
import { systemClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { systemRandom } from '../../base/random.ts';
import { anyObject, anyText, checkOptions, flag, optionTable } from '../../base/schema.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { hostsToListenOn } from '../../fabric/stream/candidates.ts';
import { loadNative } from '../../memory/native.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { isLoopback } from '../../store/environment.ts';
import { openStore, type OpenedStore } from '../../store/open-store.ts';
import { createRecorder } from '../../trace/recorder.ts';
import type { KernelTable } from '../execute/kernel.ts';
import type { FunctionTable } from '../execute/structural-kernels.ts';
import { processArbiter } from '../../comm/comm-thread.ts';
import { FabricCarrier } from '../rpc/fabric-carrier.ts';
import type { RpcCarrier } from '../rpc/rpc.ts';
import { detectCluster, taskOfRank } from './environment.ts';
import { GraphServer, type ClusterSpec } from './graph-server.ts';
import { TaskTrace } from './task-trace.ts';

/** How this process takes part in the cluster. */
export interface StartOptions {
  /** Tasks of each job; ranks are dealt in this order. Default: what `shoal run --workers --ps` says, else all are workers. */
  readonly cluster?: ClusterSpec;
  /** What carries calls and tensors. Default `fabric`. */
  readonly carrier?: 'fabric' | 'grpc';
  /** Dense kernels, such as `tensorflowKernels(tf)`, beside those of tables, optimisers, and operations that only move values. */
  readonly kernels?: KernelTable;
  /** What `call`s of any task's graph may name. */
  readonly functions?: FunctionTable;
  /** Fusion at run time. Default false. */
  readonly recvSome?: boolean;
  /** Default: this process's. */
  readonly environment?: Environment;
}

const startOptionKeys = optionTable<StartOptions>({
  cluster: anyObject,
  carrier: anyText,
  kernels: anyObject,
  functions: anyObject,
  recvSome: flag,
  environment: anyObject,
});

/** @throws ShoalError `config`, `timeout`, `auth` when the job's store cannot be reached. */
export async function startGraphServer(options: StartOptions = {}): Promise<GraphServer> {
  checkOptions('startGraphServer', options, startOptionKeys);
  const { carrier = 'fabric', environment = process.env, kernels, functions, recvSome } = options;
  if (carrier !== 'fabric' && carrier !== 'grpc')
    throw new ShoalError('usage', `startGraphServer: carrier must be 'fabric' or 'grpc', not '${String(carrier)}'`);
  const settings = readSettings(environment);
  const opened = await openStore('env://', {
    clock: systemClock,
    random: systemRandom,
    environment,
    timeoutMs: settings.timeoutMs,
    connectTimeoutMs: settings.connectTimeoutMs,
    insecure: settings.insecure ? 'allow' : 'refuse',
  });
  const { rank = 0, worldSize = 1 } = opened.spec ?? {};
  const cluster = options.cluster ?? detectCluster(environment, worldSize);
  return GraphServer.start({
    ...taskOfRank(cluster, rank, worldSize),
    cluster,
    rank,
    store: opened.store,
    carrier: await makeCarrier(carrier, opened, { rank, worldSize, interfaces: settings.interfaces, insecure: settings.insecure }),
    clock: systemClock,
    random: systemRandom,
    parameterKernels: createParameterKernels({ native: loadNative({ enabled: settings.native }) }),
    ...(settings.traceDir !== '' && { trace: startTrace(rank, settings) }),
    ...(kernels && { kernels }),
    ...(functions && { functions }),
    ...(recvSome !== undefined && { recvSome }),
    closeStore: true,
  });
}

function startTrace(rank: number, { traceDir: folder, traceEvents, traceIntervalMs: intervalMs }: Settings): TaskTrace {
  const recorder = createRecorder({ clock: systemClock, thread: 'main', eventsMax: traceEvents });
  return new TaskTrace(recorder, { folder, rank, intervalMs, clock: systemClock });
}

interface Seat {
  readonly rank: number;
  readonly worldSize: number;
  readonly interfaces: readonly string[];
  readonly insecure: boolean;
}

/** Jobs that meet on the loopback interface stay there. */
async function makeCarrier(kind: 'fabric' | 'grpc', { url, world, secret }: OpenedStore, seat: Seat): Promise<RpcCarrier> {
  const { rank, worldSize, interfaces, insecure } = seat;
  const isLocal = url === undefined || isLoopback(new URL(url).hostname);
  const listenHosts = isLocal ? ['127.0.0.1'] : ['0.0.0.0', '::'];
  if (kind === 'grpc') {
    if (!isLocal && !insecure) {
      throw new ShoalError(
        'unsupported',
        'gRPC between hosts is neither encrypted nor safe from who listens: use the fabric, or allow it by SHOAL_INSECURE=1',
      );
    }
    const { GrpcCarrier } = await import('../rpc/grpc-carrier.ts');
    const [{ addresses }] = hostsToListenOn(listenHosts, interfaces);
    return new GrpcCarrier({ random: systemRandom, secret, host: addresses[0] });
  }
  const name = `${world}/graph`;
  const createFabric = (): TcpFabric =>
    new TcpFabric({
      identity: { world: name, rank },
      worldSize,
      secret,
      clock: systemClock,
      random: systemRandom,
      listenHosts,
      interfaces,
    });
  return new FabricCarrier({ createFabric, clock: systemClock, random: systemRandom, world: name, rank, arbiter: processArbiter() });
}
