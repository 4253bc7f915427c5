/** Calls over gRPC (`@grpc/grpc-js`): the baseline that fabrics are measured against, and a way to other languages' tools. One method,
 *  whose requests and answers are bytes; a stream that stays open says that its caller is there.
 *
 *      request  method u8 │ caller, 24 letters │ job's proof, 64 letters │ padding to 96 │ body
 *      answer   kind u8 (part, end, error) │ padding to 8 │ body                              a stream of them */
import { createHmac, timingSafeEqual } from 'node:crypto';
import net from 'node:net';
import * as grpc from '@grpc/grpc-js';
import { systemClock, type Clock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import {
  aborted,
  decodeError,
  describeLoss,
  encodeError,
  joinPieces,
  type CallOptions,
  type Pieces,
  type RpcCarrier,
  type RpcLink,
  type RpcService,
  type RpcStats,
} from './rpc.ts';

export interface GrpcCarrierOptions {
  readonly random: Random;
  readonly secret: Uint8Array;
  /** Where to listen, an address that others reach. Nothing is encrypted. Default: this host only. */
  readonly host?: string;
  /** Default the system's. */
  readonly clock?: Clock;
}

const raw = (bytes: Buffer): Buffer => bytes;
const method = {
  requestStream: false,
  responseStream: true,
  requestSerialize: raw,
  requestDeserialize: raw,
  responseSerialize: raw,
  responseDeserialize: raw,
};
const definition: grpc.ServiceDefinition<Record<'Call' | 'Attend', grpc.UntypedHandleCall>> = {
  Call: { path: '/shoal.Worker/Call', ...method },
  Attend: { path: '/shoal.Worker/Attend', ...method },
};
const channelOptions: grpc.ChannelOptions = { 'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1 };
/** A task may take so long to answer at first. */
const connectMs = 10_000;
const headBytes = 96;
const answerBytes = 8;
const Kind = { part: 1, end: 2, error: 3 } as const;

type Stream = grpc.ServerWritableStream<Buffer, Buffer>;

export class GrpcCarrier implements RpcCarrier {
  readonly name = 'grpc';
  readonly stats: RpcStats = { calls: 0, bytesSent: 0, bytesReceived: 0 };
  readonly #random: Random;
  readonly #proof: string;
  readonly #host: string;
  readonly #clock: Clock;
  readonly #links = new Set<GrpcLink>();
  #server: grpc.Server | undefined;
  #closed = false;

  constructor({ random, secret, host = '127.0.0.1', clock = systemClock }: GrpcCarrierOptions) {
    this.#random = random;
    this.#clock = clock;
    this.#host = net.isIP(host) === 6 ? `[${host}]` : host;
    this.#proof = createHmac('sha256', secret).update('shoal graph over gRPC').digest('hex');
  }

  async listen(service: RpcService): Promise<string> {
    const server = new grpc.Server(channelOptions);
    this.#server = server;
    server.addService(definition, {
      Call: (stream: Stream) => void this.#serve(service, stream),
      Attend: (stream: Stream) => {
        const head = this.#admit(stream);
        if (head === undefined) return;
        stream.write(answer(Kind.part, []));
        stream.once('cancelled', () => service.callerGone(head.caller));
      },
    });
    const port = await new Promise<number>((resolve, reject) =>
      server.bindAsync(`${this.#host}:0`, grpc.ServerCredentials.createInsecure(), (error, bound) =>
        error === null ? resolve(bound) : reject(error),
      ),
    );
    return `${this.#host}:${port}`;
  }

  async connect(address: string, task: string): Promise<RpcLink> {
    if (this.#closed) throw new ShoalError('closed', `${task} cannot be reached: this carrier is closed`);
    const link = new GrpcLink(
      address,
      task,
      { caller: Buffer.from(this.#random.bytes(12)).toString('hex'), proof: this.#proof },
      this.stats,
    );
    this.#links.add(link);
    void link.lost.then(() => this.#links.delete(link));
    const timeout = new ShoalError('timeout', `${task} cannot be reached: no answer from ${address} within ${connectMs} ms`);
    const timer = this.#clock.setTimer(connectMs, () => link.fail(timeout), { keepAlive: true });
    try {
      await link.open();
    } finally {
      timer.cancel();
    }
    return link;
  }

  async close(): Promise<void> {
    this.#closed = true;
    await Promise.all([...this.#links].map((link) => link.close()));
    this.#server?.forceShutdown();
  }

  async #serve(service: RpcService, stream: Stream): Promise<void> {
    const head = this.#admit(stream);
    if (head === undefined) return;
    this.stats.bytesReceived += stream.request.length;
    const abort = new AbortController();
    stream.once('cancelled', () => abort.abort());
    const send = (kind: number, pieces: Pieces): void => {
      if (abort.signal.aborted) return;
      const bytes = answer(kind, pieces);
      this.stats.bytesSent += bytes.length;
      stream.write(bytes);
    };
    try {
      const pieces = await service.handle({
        method: head.method,
        body: Uint8Array.from(stream.request.subarray(headBytes)),
        caller: head.caller,
        signal: abort.signal,
        part: (part) => send(Kind.part, part),
      });
      send(Kind.end, pieces);
    } catch (thrown) {
      send(Kind.error, [encodeError(ShoalError.from(thrown))]);
    }
    stream.end();
  }

  /** Undefined, and an end, for who does not know the job's secret. */
  #admit(stream: Stream): { readonly method: number; readonly caller: string } | undefined {
    const { request } = stream;
    const [caller, proof] = [request.subarray(1, 25), request.subarray(25, 89)].map((bytes) => bytes.toString('latin1'));
    const expected = Buffer.from(this.#proof);
    if (request.length >= headBytes && /^[0-9a-f]{24}$/.test(caller) && timingSafeEqual(Buffer.from(proof.padEnd(64, ' ')), expected))
      return { method: request[0], caller };
    stream.emit('error', { code: grpc.status.UNAUTHENTICATED, details: "the caller does not know the job's secret" });
    return undefined;
  }
}

function answer(kind: number, pieces: Pieces): Buffer {
  const bytes = joinPieces(pieces, answerBytes);
  bytes[0] = kind;
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

class GrpcLink implements RpcLink {
  readonly lost: Promise<void>;
  readonly #task: string;
  readonly #client: grpc.Client;
  readonly #head: Buffer;
  readonly #stats: RpcStats;
  readonly #open = new Set<(error: ShoalError) => void>();
  #attending: grpc.ClientReadableStream<Buffer> | undefined;
  #end: ShoalError | undefined;
  #tellLost: () => void = () => {};

  constructor(address: string, task: string, { caller, proof }: { readonly caller: string; readonly proof: string }, stats: RpcStats) {
    this.#stats = stats;
    this.#task = task;
    this.#client = new grpc.Client(address, grpc.credentials.createInsecure(), channelOptions);
    this.#head = Buffer.alloc(headBytes);
    this.#head.write(caller, 1);
    this.#head.write(proof, 25);
    this.lost = new Promise((resolve) => {
      this.#tellLost = resolve;
    });
  }

  /** Resolves when the task has answered. */
  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      const stream = this.#client.makeServerStreamRequest('/shoal.Worker/Attend', raw, raw, this.#head);
      this.#attending = stream;
      this.#open.add(reject);
      stream.once('data', () => {
        this.#open.delete(reject);
        resolve();
      });
      stream.once('error', (thrown) => this.fail(lossOf(this.#task, thrown)));
      stream.once('end', () => this.fail(new ShoalError('peer-lost', `${this.#task} has ended`)));
    });
  }

  call(number: number, body: Pieces, { signal, onPart }: CallOptions = {}): Promise<Uint8Array> {
    return new Promise((resolve, reject) => {
      if (this.#end !== undefined) throw this.#end;
      const cancelled = (): ShoalError => aborted(this.#task, signal);
      if (signal?.aborted === true) throw cancelled();
      const head = Buffer.from(this.#head);
      head[0] = number;
      const joined = joinPieces([head, ...body]);
      const request = Buffer.from(joined.buffer);
      this.#stats.calls++;
      this.#stats.bytesSent += request.length;
      const stream = this.#client.makeServerStreamRequest('/shoal.Worker/Call', raw, raw, request);
      const settle = (finish: () => void): void => {
        signal?.removeEventListener('abort', onAbort);
        this.#open.delete(fail);
        finish();
      };
      const fail = (error: ShoalError): void => {
        settle(() => reject(error));
        stream.cancel();
      };
      const onAbort = (): void => fail(cancelled());
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#open.add(fail);
      stream.on('data', (bytes: Buffer) => {
        this.#stats.bytesReceived += bytes.length;
        const content = Uint8Array.from(bytes.subarray(answerBytes));
        if (bytes[0] === Kind.part) onPart?.(content);
        else if (bytes[0] === Kind.end) settle(() => resolve(content));
        else settle(() => reject(decodeError(content)));
      });
      stream.once('error', (thrown) => settle(() => reject(this.#end ?? lossOf(this.#task, thrown))));
      stream.once('end', () => settle(() => reject(new ShoalError('protocol', `${this.#task} ended an answer in the middle`))));
    });
  }

  async close(): Promise<void> {
    this.fail(new ShoalError('closed', `the link to ${this.#task} is closed`));
  }

  fail(error: ShoalError): void {
    if (this.#end !== undefined) return;
    this.#end = error;
    this.#tellLost();
    for (const fail of this.#open) fail(error);
    this.#open.clear();
    this.#attending?.cancel();
    this.#client.close();
  }
}

/** In gRPC's words, without its number of the status. */
function lossOf(task: string, thrown: Error & Partial<grpc.StatusObject>): ShoalError {
  const code = thrown.code === grpc.status.UNAUTHENTICATED ? 'auth' : 'peer-lost';
  return new ShoalError(code, describeLoss(task, thrown.details ?? thrown.message), { cause: thrown });
}
