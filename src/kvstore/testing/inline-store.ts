/** A worker's store whose client runs on this thread, where it would be a guest of the comm thread: several in one process share
 *  nothing. */
import { ShoalError } from '../../base/errors.ts';
import { readSettings, type Environment } from '../../base/settings/settings.ts';
import { CommChannel } from '../../comm/caller/comm-channel.ts';
import { InlineHost } from '../../comm/caller/comm-host.ts';
import { ClientNode, type WorkerPort } from '../../ps/client/client-node.ts';
import type { ClientChannel, ClientCommand, ClientEvent } from '../../ps/client/commands.ts';
import type { NodeContext } from '../../ps/job/node-context.ts';
import { ProcessValues } from '../../ps/protocol/process-values.ts';
import { CheckedStore } from '../calls/checked-store.ts';
import { DistBackend } from '../stores/dist-backend.ts';
import type { KVStore } from '../calls/types.ts';

export interface InlineStoreOptions extends Pick<NodeContext, 'allocator' | 'kernels' | 'parameterKernels'> {
  readonly environment: Environment;
  readonly open: () => Promise<NodeContext>;
  /** When what is sent to the client, and by it, arrives. Default: at once. */
  readonly turn?: (callback: () => void) => void;
}

export async function openInlineStore(options: InlineStoreOptions): Promise<KVStore> {
  const { environment, open, turn, allocator, kernels, parameterKernels } = options;
  const channel: ClientChannel = new CommChannel(
    (handlers) => new InlineHost((emit) => guest({ environment, open }, emit), handlers, { turn }),
  );
  const values = new ProcessValues({
    allocator,
    thread: 0,
    onCreate: (region, share) => channel.post({ type: 'map', region, share }),
    onDrop: (region) => channel.post({ type: 'unmap', region }),
  });
  const { timeoutMs } = readSettings(environment);
  const info = await channel.ready();
  return new CheckedStore(new DistBackend({ type: 'dist_sync', info, channel, values, kernels, parameterKernels, timeoutMs }));
}

function guest(
  { environment, open }: Pick<InlineStoreOptions, 'environment' | 'open'>,
  emit: (event: ClientEvent) => void,
): { start(): Promise<void>; handle(command: ClientCommand): void } {
  let deliver: ((command: ClientCommand) => void) | undefined;
  const early: ClientCommand[] = [];
  const port: WorkerPort = {
    onCommand: (handle) => {
      deliver = handle;
      for (const command of early.splice(0)) handle(command);
    },
    emit,
    settle: (work, error, answer) =>
      emit({ type: 'done', work, ...(error && { error: error.toData() }), ...(answer === undefined ? {} : { answer: answer as never }) }),
    close: () => undefined,
  };
  return {
    start: async () => {
      try {
        const node = await ClientNode.start({ environment, async: false, localWorkers: 1 }, { onEnded: () => undefined, open });
        node.attach(0, port);
      } catch (thrown) {
        emit({ type: 'failed', error: ShoalError.from(thrown).toData() });
      }
    },
    handle: (command) => (deliver ? deliver(command) : early.push(command)),
  };
}
