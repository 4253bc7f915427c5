/** The functions of node:net that streams between processes use; tests replace them. */
import { connect, createServer, type NetConnectOpts, type Server, type ServerOpts, type Socket } from 'node:net';

export interface StreamNetwork {
  connect(options: NetConnectOpts): Socket;
  createServer(options: ServerOpts, onConnection: (socket: Socket) => void): Server;
}

export const systemNetwork: StreamNetwork = { connect, createServer };
