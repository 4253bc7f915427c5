/** Calls over gRPC (`@grpc/grpc-js`), with which benchmarks compare Shoal: requests and answers are raw bytes, so that nothing is serialised
 *  or copied by choice. Callers are not authenticated and nothing is encrypted. */
import * as grpc from '@grpc/grpc-js';

export type Unary = grpc.handleUnaryCall<Buffer, Buffer>;
export type Streaming = grpc.handleServerStreamingCall<Buffer, Buffer>;

const channelOptions: grpc.ChannelOptions = {
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  // A tensor must not wait until the receiver reports room.
  'grpc-node.flow_control_window': 64 * 1024 * 1024,
};

export const raw = (bytes: Buffer): Buffer => bytes;

export interface Served {
  /** Host and port. */
  readonly address: string;
  close(): void;
  /** Resolves when all calls are answered. */
  closeInOrder(): Promise<void>;
}

/** @param address such as `127.0.0.1:0`.
 *  @param streams methods that give any number of answers. */
export async function serve(address: string, methods: Record<string, Unary>, streams: Record<string, Streaming> = {}): Promise<Served> {
  const server = new grpc.Server(channelOptions);
  const all = { ...methods, ...streams };
  const definition = Object.keys(all).map((name) => [
    name,
    {
      path: pathOf(name),
      requestStream: false,
      responseStream: Object.hasOwn(streams, name),
      requestSerialize: raw,
      requestDeserialize: raw,
      responseSerialize: raw,
      responseDeserialize: raw,
    },
  ]);
  server.addService(Object.fromEntries(definition) as grpc.ServiceDefinition, all);
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error, bound) => (error === null ? resolve(bound) : reject(error))),
  );
  return {
    address: `${address.slice(0, address.lastIndexOf(':'))}:${port}`,
    close: () => server.forceShutdown(),
    closeInOrder: () => new Promise((resolve) => server.tryShutdown(() => resolve())),
  };
}

export function pathOf(method: string): string {
  return `/shoal.Benchmark/${method}`;
}

export function connect(address: string): grpc.Client {
  return new grpc.Client(address, grpc.credentials.createInsecure(), channelOptions);
}
