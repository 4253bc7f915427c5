/** Entry of the comm thread. */
import { workerData } from 'node:worker_threads';
import { CommCore } from './comm-core.ts';
import type { CommWorkerData } from './comm-host.ts';
import type { Command, CommEvent } from '../engine/comm-protocol.ts';
import { systemEnvironment } from './system-environment.ts';

const { plan, port, events } = workerData as CommWorkerData;
const posted = new Int32Array(events);

function emit(event: CommEvent): void {
  port.postMessage(event);
  Atomics.add(posted, 0, 1);
  Atomics.notify(posted, 0);
}

const core = new CommCore(plan, systemEnvironment(plan, { thread: 'comm' }), emit);
port.on('message', (command: Command) => core.handle(command));
void core.start();
