/** The functions of node:net that streams between processes use; tests replace them. */
import net, { createServer, type NetConnectOpts, type Server, type ServerOpts, type Socket } from 'node:net';

export interface StreamNetwork {
  connect(options: NetConnectOpts): Socket;
  createServer(options: ServerOpts, onConnection: (socket: Socket) => void): Server;
}

export const systemNetwork: StreamNetwork = { connect, createServer };

/** Connects. Where nobody listens, the system may take the very port that is dialled for this end, and TCP connects it to itself (RFC 9293,
 *  3.5): that is an error, as if it had been refused. The connection is reset, because the system keeps the port of one that is closed
 *  for a minute from whoever wants to listen there. */
export function connect(options: NetConnectOpts & { readonly onread?: net.OnReadOpts }): Socket {
  const socket = net.connect(options);
  socket.once('connect', () => {
    const { localPort, localAddress, remotePort, remoteAddress } = socket;
    if (localPort === undefined || localPort !== remotePort || localAddress !== remoteAddress) return;
    socket.resetAndDestroy();
    socket.emit('error', new Error('nobody listens there: the connection led back to itself'));
  });
  return socket;
}
