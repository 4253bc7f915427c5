/** Entry of a process that the launcher starts as a server or as the standby of one. It serves until all workers have left
 *  or the launcher says SIGTERM; one whose place another has taken ends with code 1, so that it is started again, as standby. */
import { ShoalError } from '../../base/errors.ts';
import { ServerNode } from './server-node.ts';

const stopped = new AbortController();
for (const name of ['SIGTERM', 'SIGINT'] as const) process.on(name, () => stopped.abort());
try {
  const node = await ServerNode.start(process.env, { signal: stopped.signal });
  const stop = (): void => void node.stop();
  if (stopped.signal.aborted) stop();
  else stopped.signal.addEventListener('abort', stop, { once: true });
  if ((await node.ended) === 'replaced') process.exit(1);
} catch (thrown) {
  if (!stopped.signal.aborted) {
    process.stderr.write(`${ShoalError.from(thrown).message}\n`);
    process.exit(1);
  }
}
process.exit(0);
