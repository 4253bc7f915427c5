/** The cases of the rendezvous benchmark, and their carriers: both processes read them here. */
import { RendezvousWorker, type ReceivedTensor, type WorkerIdentity } from 'shoal/rendezvous';
import type { FabricOptions } from '../../src/fabric/fabric.ts';
import { fabricProviders } from '../../src/fabric/providers.ts';
import { systemEnvironment } from '../../src/rendezvous/environment.ts';
import { GrpcWorker } from '../grpc/worker.ts';
import { SocketWorker } from './socket-worker.ts';
import { stagedFabric } from './staged-fabric.ts';

export interface Case {
  readonly name: string;
  /** Number of float32 elements of each tensor of a step. */
  readonly counts: readonly number[];
  /** Steps of one sample, one after the other. */
  readonly stepsPerSample: number;
  /** Statistic of the steps' times that is the sample: their mean, or their median, which is not disturbed by other users of the CPU. */
  readonly sampleOf: 'mean' | 'median';
  /** Samples before those that count. */
  readonly warmUps: number;
  readonly samples: number;
  /** `step`: all tensors of a step are asked for at once. */
  readonly unit: 'step';
  readonly contestants: readonly Contestant[];
}

export interface Contestant {
  readonly name: string;
  readonly carrier: 'shm' | 'tcp' | 'grpc' | 'socket';
  /** True: through staging buffers at both ends, the design that writes without copies replace. */
  readonly copies?: boolean;
  /** Number of steps that a standing request is ahead. */
  readonly standing?: number;
}

const convolutions = [
  [3, 64],
  [64, 64],
  [64, 128],
  [128, 128],
  [128, 256],
  [256, 256],
  [256, 256],
  [256, 512],
  ...Array.from({ length: 5 }, () => [512, 512]),
];
const dense = [
  [25_088, 4096],
  [4096, 4096],
  [4096, 1000],
];
/** VGG16: 32 tensors, 138,357,544 elements. */
const vgg16 = [...convolutions.map(([from, to]) => [9 * from * to, to]), ...dense.map(([from, to]) => [from * to, to])].flat();

const [shm, tcp, grpc] = (['shm', 'tcp', 'grpc'] as const).map((carrier): Contestant => ({ name: carrier, carrier }));
const [shmCopies, tcpCopies] = (['shm', 'tcp'] as const).map((carrier): Contestant => ({
  name: `${carrier} with copies`,
  carrier,
  copies: true,
}));

export type Place = 'host' | 'network';

/** @param scale of tensors and samples: 1, or less for a trial.
 *  @param wanted names of cases, with commas between them; '' for all. */
export function casesOf(place: Place, scale: number, wanted: string): readonly Case[] {
  const scaled = (count: number): number => Math.max(2, Math.round(count * scale));
  const everything = place === 'host' ? [shm, tcp, grpc, shmCopies, tcpCopies] : [tcp, grpc, tcpCopies];
  const direct = place === 'host' ? [shm, tcp, grpc] : [tcp, grpc];
  const cases: Case[] = [
    {
      name: 'VGG16',
      counts: vgg16.map((count) => Math.max(1, Math.round(count * scale))),
      stepsPerSample: 1,
      samples: scaled(5),
      sampleOf: 'mean',
      warmUps: 2,
      unit: 'step',
      contestants: everything,
    },
    {
      name: '1 KiB',
      counts: [256],
      stepsPerSample: scaled(300),
      samples: scaled(15),
      sampleOf: 'median',
      warmUps: 8,
      unit: 'step',
      contestants: direct,
    },
    {
      name: '1000 × 4 KiB',
      counts: Array.from({ length: 1000 }, () => 1024),
      stepsPerSample: 1,
      samples: scaled(20),
      sampleOf: 'mean',
      warmUps: 2,
      unit: 'step',
      contestants: direct,
    },
  ];
  const requests = { name: 'tcp, requests', carrier: 'tcp' } as const;
  const standing = { name: 'tcp, standing requests', carrier: 'tcp', standing: 8 } as const;
  const socket = { name: 'a plain socket', carrier: 'socket' } as const;
  const small = { stepsPerSample: scaled(200), samples: scaled(15), sampleOf: 'mean', warmUps: 4, unit: 'step' } as const;
  cases.push({ name: '64 KiB', counts: [16_384], ...small, contestants: [requests, standing] });
  const alone = place === 'host' ? [shm, tcp, socket] : [tcp, socket];
  for (const [name, kib] of [
    ['1 KiB', 1],
    ['16 KiB', 16],
    ['64 KiB', 64],
    ['1 MiB', 1024],
  ] as const)
    cases.push({ ...small, name: `${name} beside a socket`, counts: [kib * 256], sampleOf: 'median', contestants: alone });
  return wanted === '' ? cases : cases.filter(({ name }) => wanted.split(/, */).includes(name));
}

/** Number of steps that the sender is ahead. */
export const window = 16;

export const identities: readonly WorkerIdentity[] = [0, 1].map((rank) => ({
  rank,
  device: `/job:worker/task:${rank}/device:CPU:0`,
  incarnation: 0n,
}));

/** Number of the first step of a contestant in a case. */
export function firstStep(caseIndex: number): number {
  return caseIndex * 1_000_000;
}

export function stepsOf({ samples, warmUps, stepsPerSample }: Case): number {
  return (samples + warmUps) * stepsPerSample;
}

export type Worker = RendezvousWorker | GrpcWorker | SocketWorker;

/** @param longest number of elements of a tensor that this worker asks for, by case. */
export function start(
  rank: number,
  { carrier, copies = false }: Contestant,
  host: string,
  longest: readonly number[] = [],
): Promise<Worker> {
  const stepsMax = 65_536;
  if (carrier === 'socket') return SocketWorker.start(host, longest);
  if (carrier === 'grpc') return GrpcWorker.start(rank, host, stepsMax);
  const options = { rank, secret: 'bench', carriers: [carrier], listenHosts: [host], memoryBytesMax: 2 ** 34, stepsMax };
  if (!copies) return RendezvousWorker.start(options);
  const providers = fabricProviders.map((provider) => ({
    ...provider,
    create: (given: FabricOptions) => stagedFabric(provider.create(given)),
  }));
  // The package's types are others than those of its sources.
  return RendezvousWorker.start(options, { ...systemEnvironment(), providers } as unknown as Parameters<typeof RendezvousWorker.start>[1]);
}

/** Memory into which the tensors of a contestant with copies are moved as they come, by length. */
const ownMemory = new Map<number, Float32Array>();

/** Passes a tensor that has come to `look`, then releases it. @returns the number of copied bytes. */
export function consume(
  value: Pick<ReceivedTensor, 'data' | 'release'> | undefined,
  { copies }: Contestant,
  look: (data: Float32Array) => void,
): number {
  let data = value!.data as Float32Array;
  if (copies === true) {
    const { length } = data;
    const own = ownMemory.get(length) ?? new Float32Array(length);
    ownMemory.set(length, own);
    own.set(data);
    data = own;
  }
  look(data);
  value!.release();
  return copies === true ? data.byteLength : 0;
}
