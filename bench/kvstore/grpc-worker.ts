/** A worker of the gRPC baseline: all keys at once, each to server key mod servers, results copied to where they belong.
 *
 *    grpc-worker.ts <rank> <workers> <port of server 0> <port of server 1> … */
import * as grpc from '@grpc/grpc-js';
import { connect, pathOf, raw } from '../grpc/calls.ts';
import { measure } from './workload.ts';

const [rank, workers, ...ports] = process.argv.slice(2).map(Number);
const clients = ports.map((port) => connect(`127.0.0.1:${port}`));
const readyMs = 20_000;
await Promise.all(
  clients.map(
    (client) =>
      new Promise<void>((resolve, reject) => {
        client.waitForReady(performance.timeOrigin + performance.now() + readyMs, (error) => (error ? reject(error) : resolve()));
      }),
  ),
);

function call(server: number, method: string, request: Uint8Array, metadata: grpc.Metadata): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const bytes = Buffer.from(request.buffer, request.byteOffset, request.byteLength);
    clients[server].makeUnaryRequest(pathOf(method), raw, raw, bytes, metadata, (error, response) =>
      error === null ? resolve(response!) : reject(error),
    );
  });
}

const nothing = new Uint8Array();
await measure({
  rank,
  workers,
  barrier: async () => void (await call(0, 'Barrier', nothing, new grpc.Metadata())),
  prepare({ name, keys, bytes }) {
    const values = Array.from({ length: keys }, () => new Float32Array(bytes / 4));
    const views = values.map((value) => new Uint8Array(value.buffer));
    const metadata = values.map((_, k) => {
      const own = new grpc.Metadata();
      own.set('key', `${name}/${k}`);
      return own;
    });
    const pushPull = async (): Promise<void> => {
      await Promise.all(views.map(async (view, k) => view.set(await call(k % clients.length, 'PushPull', view, metadata[k]))));
    };
    return Promise.resolve({ values, outs: values, pushPull });
  },
});
await Promise.all(clients.map((_, server) => call(server, 'Leave', nothing, new grpc.Metadata())));
for (const client of clients) client.close();
