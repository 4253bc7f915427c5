/** The registry of backends. A new one is its own file and one line here. */
import type { Backend, BackendOptions } from './backend.ts';
import { ShoalError } from '../base/errors.ts';
import { FabricBackend, type FabricEndpoint } from './backends/fabric.ts';
import { InprocBackend } from './backends/inproc.ts';
import { mpiUnavailable } from '../memory/mpi-endpoint.ts';
import { createMpiBackend } from './backends/mpi.ts';
import type { FramePlaces } from './backends/frame-places.ts';
import type { ThreadGate } from './thread-gate.ts';
import { createZeromqBackend, zeromqUnavailable } from './backends/zeromq.ts';

export interface BackendSettings extends BackendOptions {
  readonly encryption: 'curve' | 'none';
  readonly fabric?: FabricEndpoint;
  /** Over that fabric. */
  readonly places?: FramePlaces;
  readonly gate?: ThreadGate;
}

export interface MessagingBackend {
  readonly name: string;
  readonly schemes: readonly string[];
  readonly description: string;
  /** The reason why this machine cannot use it; undefined when it can. */
  unavailable(): Promise<string | undefined>;
  create(settings: BackendSettings): Promise<Backend>;
}

export const messagingBackends: readonly MessagingBackend[] = [
  {
    name: 'inproc',
    schemes: ['inproc'],
    description: 'threads of one process; rings in shared memory',
    unavailable: async () => undefined,
    create: async (settings) => new InprocBackend(settings),
  },
  {
    name: 'zeromq',
    schemes: ['tcp', 'ipc'],
    description: 'processes of one host or many; ZeroMQ with CURVE',
    unavailable: zeromqUnavailable,
    create: createZeromqBackend,
  },
  {
    name: 'mpi',
    schemes: ['mpi'],
    description: 'processes that mpirun started; Open MPI',
    unavailable: async () => mpiUnavailable(),
    create: createMpiBackend,
  },
  {
    name: 'fabric',
    schemes: ['fabric'],
    description: 'processes over the data plane; large frames are written into registered memory',
    unavailable: async () => undefined,
    create: async (settings) => {
      if (settings.fabric === undefined || settings.places === undefined)
        throw new ShoalError('usage', 'fabric:// needs a fabric: give the messaging context the option fabric');
      return new FabricBackend(settings, settings.fabric, settings.places);
    },
  },
];
