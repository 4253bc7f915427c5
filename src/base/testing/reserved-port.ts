/** Ports for tests in which nobody listens, not yet or not any more. The system gives a port that it got back to the next process
 *  that asks, and takes such ports for connections, even to themselves; these ports are none of them. */
import { createServer, type Server } from 'node:net';

/** Range below the ports from which systems choose (ip_local_port_range). */
const [firstPort, portCount] = [10_000, 10_000];
/** Address on which a test listens to reserve a port; tests themselves listen on 127.0.0.1. */
const reservingHost = '127.0.0.77';

/** A port of 127.0.0.1 that is free, and that no other test gets while this process lives. */
export async function reservePort(): Promise<number> {
  // Processes that run at the same time begin far from each other.
  const start = process.pid * 97;
  for (let k = 0; k < portCount; k++) {
    const port = firstPort + ((start + k) % portCount);
    const reserved = await tryListen(reservingHost, port);
    if (reserved === undefined) continue;
    reserved.unref();
    const free = await tryListen('127.0.0.1', port);
    if (free === undefined) continue;
    await new Promise((resolve) => free.close(resolve));
    return port;
  }
  throw new Error(`no port from ${firstPort} to ${firstPort + portCount - 1} is free`);
}

function tryListen(host: string, port: number): Promise<Server | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(undefined));
    server.listen(port, host, () => resolve(server));
  });
}
