/** Ports of all addresses of this host, for a listener that is started later, in another process: a port from the system may be
 *  given to another process by then. */
import { createServer } from 'node:net';

/** Candidates below the ports that the system assigns, and far from those that another process of tests begins with. */
const ports = Array.from({ length: 1000 }, (_, k) => 20_000 + ((process.pid * 97 + k) % 10_000));

/** A port on which nobody listens, and that is not given out again. */
export async function freePort(): Promise<number> {
  for (let port = ports.pop(); port !== undefined; port = ports.pop()) {
    const server = createServer();
    const free = await new Promise((resolve) => {
      server.on('error', () => resolve(false)).listen(port, '0.0.0.0', () => server.close(() => resolve(true)));
    });
    if (free) return port;
  }
  throw new Error('no port is free');
}
