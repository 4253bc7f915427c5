/** Starts the graph server of this process, from the environment that its launcher made. */
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import { anyObject, checkOptions, flag, optionTable } from '../../base/schema.ts';
import { createLogger, type Logger } from '../../base/log.ts';
import { readSettings, type Environment, type Settings } from '../../base/settings/settings.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { loadNative } from '../../memory/native.ts';
import { recordCiphers } from '../../memory/native-records.ts';
import { createParameterKernels } from '../../memory/parameter-kernels/create-parameter-kernels.ts';
import { isLoopback } from '../../store/environment.ts';
import { openStoreOf, type OpenedStore } from '../../store/open-store.ts';
import { createRecorder } from '../../trace/recorder.ts';
import type { KernelTable } from '../execute/kernel.ts';
import type { FunctionTable } from '../execute/structural-kernels.ts';
import { processArbiter } from '../../comm/caller/comm-thread.ts';
import type { TaskTensors } from './task-tensors.ts';
import { detectCluster, taskOfRank } from './environment.ts';
import { GraphServer, type ClusterSpec, type GraphServerOptions } from './graph-server.ts';
import { TaskTrace } from './task-trace.ts';

/** The part of this process in the cluster. */
export interface StartOptions {
  /** Tasks of each job; ranks are dealt in this order. Default: what `shoal run --workers --ps` says, else all are workers. */
  readonly cluster?: ClusterSpec;
  /** Dense kernels, such as `tensorflowKernels(tf)`, beside those of tables, optimisers, and operations that only move values. */
  readonly kernels?: KernelTable;
  /** Functions that `call`s of any task's graph may name. */
  readonly functions?: FunctionTable;
  /** Fusion at run time. Default false. */
  readonly recvSome?: boolean;
  /** Default: this process's. */
  readonly environment?: Environment;
}

const startOptionKeys = optionTable<StartOptions>({
  cluster: anyObject,
  kernels: anyObject,
  functions: anyObject,
  recvSome: flag,
  environment: anyObject,
});

/** @throws ShoalError `config`, `timeout`, `auth` when the job's store cannot be reached. */
export function startGraphServer(options: StartOptions = {}): Promise<GraphServer> {
  return startTask(options);
}

/** @param Tensors what exchanges tensors: benchmarks have another one. */
export async function startTask(options: StartOptions, Tensors?: typeof TaskTensors): Promise<GraphServer> {
  checkOptions('startGraphServer', options, startOptionKeys);
  const { environment = process.env, kernels, functions, recvSome } = options;
  const settings = readSettings(environment);
  const opened = await openStoreOf(environment, settings);
  const { rank = 0, worldSize = 1 } = opened.spec ?? {};
  const log = createLogger({ level: settings.logLevel, clock: systemClock, speaker: `rank ${rank}` });
  const cluster = options.cluster ?? detectCluster(environment, worldSize);
  return GraphServer.start({
    ...taskOfRank(cluster, rank, worldSize),
    cluster,
    rank,
    store: opened.store,
    ...fabricOptions(opened, { rank, worldSize, settings }),
    arbiter: processArbiter(),
    ...(Tensors && { Tensors }),
    clock: systemClock,
    random: systemRandom,
    log,
    parameterKernels: createParameterKernels({ native: loadNative({ enabled: settings.native }) }),
    ...(settings.traceDir !== '' && { trace: startTrace(rank, settings, log) }),
    ...(kernels && { kernels }),
    ...(functions && { functions }),
    ...(recvSome !== undefined && { recvSome }),
    closeStore: true,
  });
}

function startTrace(rank: number, { traceDir: folder, traceEvents, traceIntervalMs: intervalMs }: Settings, log: Logger): TaskTrace {
  const recorder = createRecorder({ clock: systemClock, thread: 'main', eventsMax: traceEvents });
  return new TaskTrace(recorder, { folder, rank, intervalMs, clock: systemClock, log });
}

interface Seat {
  readonly rank: number;
  readonly worldSize: number;
  readonly settings: Settings;
}

/** Jobs that meet on the loopback interface stay there. */
function fabricOptions(
  { url, world, secret }: OpenedStore,
  { rank, worldSize, settings }: Seat,
): Pick<GraphServerOptions, 'createFabric' | 'identity'> {
  const isLocal = url === undefined || isLoopback(new URL(url).hostname);
  const listenHosts = isLocal ? ['127.0.0.1'] : ['0.0.0.0', '::'];
  const identity = { world: `${world}/graph`, rank };
  const createFabric = (): TcpFabric =>
    new TcpFabric({
      identity,
      worldSize,
      secret,
      clock: systemClock,
      random: systemRandom,
      listenHosts,
      interfaces: settings.interfaces,
      ciphers: recordCiphers(loadNative({ enabled: settings.native })),
      settings,
    });
  return { createFabric, identity };
}
