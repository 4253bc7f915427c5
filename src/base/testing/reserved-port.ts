/** Ports for tests in which nobody listens, not yet or not any more: what the system gave out and got back, it gives to the
 *  next who asks, and it takes such ports for connections, even to themselves. */
import { createServer, type Server } from 'node:net';

/** Below what systems choose from (ip_local_port_range). */
const [firstPort, portCount] = [10_000, 10_000];
/** Tests listen on 127.0.0.1; whoever listens on the same port here has reserved it. */
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
