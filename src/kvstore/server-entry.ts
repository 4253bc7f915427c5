/** Entry of a process that the launcher starts as a server or as the standby of one. It serves until all workers have left
 *  or the launcher says SIGTERM. */
import { ShoalError } from '../base/errors.ts';
import { ServerNode } from './server-node.ts';

const stopped = new AbortController();
let node: ServerNode | undefined;

function stop(): void {
  stopped.abort();
  node?.stop().catch(fail);
}

function fail(thrown: unknown): void {
  process.stderr.write(`${ShoalError.from(thrown).message}\n`);
  process.exit(1);
}

process.on('SIGTERM', stop);
process.on('SIGINT', stop);
try {
  node = await ServerNode.start(process.env, { signal: stopped.signal });
  await node.ended;
} catch (thrown) {
  if (!stopped.signal.aborted) fail(thrown);
}
process.exit(0);
