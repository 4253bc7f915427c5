/** URLs of ZeroMQ's sockets: files, ports, and whether somebody listens there, which ZeroMQ does not tell. */
import { readFileSync } from 'node:fs';
import type net from 'node:net';
import os from 'node:os';
import { must } from '../../../base/assert.ts';
import { connect } from '../../../fabric/stream/stream-network.ts';

/** The path of a Unix socket that is a file. */
export function ipcPath(url: string): string | undefined {
  return url.startsWith('ipc://') && !url.startsWith('ipc://@') ? url.slice('ipc://'.length) : undefined;
}

/** Somebody listens at this URL: ZeroMQ replaces the Unix socket of a living listener without a word, and says only by events
 *  that it has given an address back; so we ask. */
export function answers(url: string, signal?: AbortSignal): Promise<boolean> {
  if (url.startsWith('ipc://@')) return Promise.resolve(isListedAsListening(url.slice('ipc://'.length)));
  return new Promise((resolve) => {
    const socket = connect(addressOf(url));
    const onAbort = (): void => void socket.destroy(new Error('given up'));
    signal?.addEventListener('abort', onAbort, { once: true });
    const finish = (does: boolean): void => {
      signal?.removeEventListener('abort', onAbort);
      socket.destroy();
      resolve(does);
    };
    socket.once('connect', () => finish(true));
    socket.once('error', () => finish(false));
  });
}

function addressOf(url: string): net.NetConnectOpts {
  if (url.startsWith('ipc://')) return { path: url.slice('ipc://'.length) };
  const [, host, port] = must(/^tcp:\/\/\[?(.+?)\]?:(\d+)$/.exec(url), () => `${url} has a host and a port`);
  return { host, port: Number(port), family: url.includes('[') ? 6 : 4 };
}

/** True for a Unix socket without a file that listens. Its name ends where ZeroMQ says: names that Node.js dials are padded with zeros. */
function isListedAsListening(name: string): boolean {
  const acceptsConnections = '00010000';
  const rows = readFileSync('/proc/net/unix', 'utf8').split('\n');
  return rows.some((row) => row.endsWith(` ${name}`) && row.split(/ +/, 4)[3] === acceptsConnections);
}

/** The endpoint with its wildcard replaced by an address that other hosts can use. */
export function reachable(endpoint: string): string {
  const wildcard = /^tcp:\/\/(0\.0\.0\.0|\[::\]|\*):(\d+)$/.exec(endpoint);
  if (wildcard === null) return endpoint;
  const outward = Object.values(os.networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal);
  return `tcp://${outward?.address ?? '127.0.0.1'}:${wildcard[2]}`;
}
