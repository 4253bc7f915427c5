/** The registry of backends. A new one is its own file and one line here. */
import type { Fabric } from '../fabric/fabric.ts';
import type { Backend, BackendOptions } from './backend.ts';
import { InprocBackend } from './backends/inproc.ts';
import { createZeromqBackend, zeromqUnavailable } from './backends/zeromq.ts';

export interface BackendSettings extends BackendOptions {
  readonly encryption: 'curve' | 'none';
  readonly fabric?: Fabric;
  readonly landing?: 'copy' | 'borrow';
  readonly landingBytes?: number;
}

export interface MessagingBackend {
  readonly name: string;
  readonly schemes: readonly string[];
  readonly description: string;
  /** Why this machine cannot use it, or undefined when it can. */
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
];
