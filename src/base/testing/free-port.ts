/** Ports of all addresses of this host, for a listener that is started later, in another process: a port from the system may be
 *  given to another process by then. */
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';

/** Candidates below the ports that the system assigns, and far from those that another process of tests begins with. */
const ports = Array.from({ length: 1000 }, (_, k) => 20_000 + ((process.pid * 97 + k) % 10_000));

/** A port on which nobody listens, and that no process of tests is given while this one lives: the UDP port of the same number marks it. */
export async function freePort(): Promise<number> {
  for (let port = ports.pop(); port !== undefined; port = ports.pop()) if ((await isUnused(port)) && (await mark(port))) return port;
  throw new Error('no port is free');
}

function isUnused(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.on('error', () => resolve(false)).listen(port, '0.0.0.0', () => server.close(() => resolve(true)));
  });
}

function mark(port: number): Promise<boolean> {
  const socket = createSocket('udp4').unref();
  return new Promise((resolve) => {
    socket.on('error', () => resolve(false)).bind({ port, address: '127.0.0.77', exclusive: true }, () => resolve(true));
  });
}
