/** The registry of backends. A new one is a file or a folder of its own, and one line here. */
import type { Backend } from './backend.ts';
import { createFabricBackend, type FabricBackendOptions } from './backends/fabric/fabric.ts';
import { InprocBackend } from './backends/inproc/inproc.ts';
import { createZeromqBackend, type ZeromqOptions } from './backends/zeromq/zeromq.ts';

/** The options of a context; each backend declares those that it reads. */
export interface BackendSettings extends ZeromqOptions, FabricBackendOptions {}

export interface MessagingBackend {
  /** The kinds of URLs that it serves. */
  readonly schemes: readonly string[];
  /** @throws ShoalError `unsupported` when this machine cannot use it, with the reason; `usage` for options that it lacks. */
  create(settings: BackendSettings): Promise<Backend>;
}

export const messagingBackends: readonly MessagingBackend[] = [
  { schemes: ['inproc'], create: async (settings) => new InprocBackend(settings) },
  { schemes: ['tcp', 'ipc'], create: createZeromqBackend },
  { schemes: ['mpi'], create: async (settings) => (await import('../mpi/mpi-messaging.ts')).createMpiBackend(settings) },
  { schemes: ['fabric'], create: createFabricBackend },
];
