/** The worker service over gRPC (`@grpc/grpc-js` and `protobufjs`, both optional): the same interface where there is no fabric, and what
 *  the fabric is measured against. Every receive is one call; its tensors are copied on both sides.
 *
 *  Callers show that they know the job's secret by an HMAC in each call's metadata. Connections are not encrypted. */
import { createHmac, timingSafeEqual } from 'node:crypto';
import type * as Grpc from '@grpc/grpc-js';
import type { Clock } from '../../base/clock.ts';
import { messageOf, ShoalError, type ErrorCode } from '../../base/errors.ts';
import type { FusedWaiter, SlotOutcome } from '../protocol/tensor-receiver.ts';
import type { StepTable } from '../table/step-table.ts';
import type { Cancel, Waiter } from '../table/rendezvous.ts';
import { hostValue, isStaged, type SentValue } from '../value/staged-tensor.ts';
import type { TensorValue } from '../value/tensor-value.ts';
import type { TensorCarrier } from './carrier.ts';
import { grpcMessages, type GrpcMessages, type RecvTensorRequest, type WorkerStatus } from './grpc-messages.ts';
import type { WorkerIdentity } from './tensor-channel.ts';

export interface GrpcPackages {
  readonly grpc: typeof Grpc;
  readonly messages: GrpcMessages;
}

/** @throws ShoalError `unsupported` when they are not installed. */
export async function loadGrpc(): Promise<GrpcPackages> {
  try {
    const [grpc, protobuf] = await Promise.all([import('@grpc/grpc-js'), import('protobufjs')]);
    return { grpc, messages: grpcMessages(protobuf.default) };
  } catch (error) {
    throw new ShoalError('unsupported', `gRPC needs the packages @grpc/grpc-js and protobufjs: ${messageOf(error)}; npm install both`, {
      cause: error,
    });
  }
}

const statusPath = '/shoal.WorkerService/GetStatus';
const recvPath = '/shoal.WorkerService/RecvTensor';
const proofKey = 'x-shoal-proof';
const channelOptions: Grpc.ChannelOptions = {
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  // A tensor must not wait for the receiver to say that it has room.
  'grpc-node.flow_control_window': 64 * 1024 * 1024,
};
const raw = (bytes: Buffer): Buffer => bytes;

export interface GrpcOptions extends GrpcPackages {
  readonly world: string;
  readonly secret: Uint8Array;
}

type ServiceOptions = GrpcOptions & { readonly self: WorkerIdentity; readonly steps: StepTable<SentValue> };
type CarrierOptions = GrpcOptions & { readonly clock: Clock; readonly timeoutMs: number };

/** Answers other workers. */
export class GrpcWorkerService {
  readonly #options: ServiceOptions;
  readonly #server: Grpc.Server;

  constructor(options: ServiceOptions) {
    this.#options = options;
    const { grpc, messages, self } = options;
    this.#server = new grpc.Server(channelOptions);
    const method = (path: string) => ({
      path,
      requestStream: false,
      responseStream: false,
      requestSerialize: raw,
      requestDeserialize: raw,
      responseSerialize: raw,
      responseDeserialize: raw,
    });
    const status = messages.status.encode({ rank: self.rank, device: self.device, incarnation: self.incarnation.toString(16) });
    this.#server.addService(
      { GetStatus: method(statusPath), RecvTensor: method(recvPath) },
      {
        GetStatus: (call: Call, answer: Answer) => {
          if (this.#isMember(call, answer)) answer(null, status);
        },
        RecvTensor: (call: Call, answer: Answer) => {
          if (this.#isMember(call, answer)) this.#recvTensor(call, answer);
        },
      },
    );
  }

  /** @param address `127.0.0.1:0`. @returns where it listens. */
  listen(address: string): Promise<string> {
    const { grpc } = this.#options;
    return new Promise((resolve, reject) => {
      this.#server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error, port) => {
        if (error === null) resolve(`${address.slice(0, address.lastIndexOf(':'))}:${port}`);
        else reject(new ShoalError('system', `gRPC cannot listen on ${address}: ${error.message}`, { cause: error }));
      });
    });
  }

  close(): void {
    this.#server.forceShutdown();
  }

  #isMember(call: Call, answer: Answer): boolean {
    const { grpc, world, secret } = this.#options;
    const [shown] = call.metadata.get(proofKey);
    const expected = proofOf(world, secret);
    const given = Buffer.from(String(shown ?? ''));
    if (given.length === expected.length && timingSafeEqual(given, Buffer.from(expected))) return true;
    answer({ code: grpc.status.UNAUTHENTICATED, details: `the caller does not know the secret of job '${world}'` });
    return false;
  }

  #recvTensor(call: Call, answer: Answer): void {
    const { grpc, messages, steps } = this.#options;
    let request: RecvTensorRequest;
    try {
      request = messages.request.decode(call.request);
    } catch (error) {
      return answer({ code: grpc.status.INVALID_ARGUMENT, details: messageOf(error) });
    }
    const { stepId, keys } = request;
    const outcomes: SlotOutcome[] = [];
    const cancels: Cancel[] = [];
    let pending = keys.length;
    let isOver = false;
    const release = (outcome: SlotOutcome | undefined): void => {
      if (outcome !== undefined && 'value' in outcome) outcome.value?.release?.();
    };
    const known = (slot: number, outcome: SlotOutcome): void => {
      if (isOver) return release(outcome);
      outcomes[slot] = outcome;
      if (--pending > 0) return;
      isOver = true;
      try {
        answer(null, messages.encodeOutcomes(outcomes));
      } catch (error) {
        answer({ code: grpc.status.INTERNAL, details: messageOf(error) });
      }
      outcomes.forEach(release);
    };
    keys.forEach((key, slot) =>
      cancels.push(
        steps.take(stepId, key, {
          receive: (value) => {
            if (value === undefined || !isStaged(value)) return known(slot, { value });
            hostValue(value).then(
              (read) => known(slot, { value: read }),
              (cause: unknown) => known(slot, { cause: ShoalError.from(cause) }),
            );
          },
          fail: (cause) => known(slot, { cause }),
        }),
      ),
    );
    call.on('cancelled', () => {
      if (isOver) return;
      isOver = true;
      for (const cancel of cancels) cancel();
      // What has come already nobody else can ask for.
      outcomes.forEach(release);
    });
  }
}

type Call = Grpc.ServerUnaryCall<Buffer, Buffer>;
type Answer = Grpc.sendUnaryData<Buffer>;

/** Asks one other worker. */
export class GrpcCarrier implements TensorCarrier {
  readonly description: string;
  readonly #options: CarrierOptions;
  readonly #client: Grpc.Client;
  readonly #metadata: Grpc.Metadata;
  #closed = false;

  private constructor(address: string, options: CarrierOptions) {
    const { grpc, world, secret } = options;
    this.#options = options;
    this.description = `grpc ${address}`;
    this.#client = new grpc.Client(address, grpc.credentials.createInsecure(), channelOptions);
    this.#metadata = new grpc.Metadata();
    this.#metadata.set(proofKey, proofOf(world, secret));
  }

  /** @throws ShoalError `auth`, `timeout` or `peer-lost`. */
  static async connect(address: string, options: CarrierOptions): Promise<{ carrier: GrpcCarrier; peer: WorkerIdentity }> {
    const carrier = new GrpcCarrier(address, options);
    try {
      const status = await new Promise<WorkerStatus>((resolve, reject) => {
        carrier.#call(statusPath, Buffer.alloc(0), (bytes) => resolve(options.messages.status.decode(bytes)), reject);
      });
      return { carrier, peer: { rank: status.rank, device: status.device, incarnation: BigInt(`0x${status.incarnation}`) } };
    } catch (thrown) {
      await carrier.close();
      throw ShoalError.from(thrown);
    }
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel {
    return this.recvFused(stepId, [key], {
      fail: (cause) => waiter.fail(cause),
      receive([outcome]) {
        if ('cause' in outcome) waiter.fail(outcome.cause);
        else waiter.receive(outcome.value);
      },
    });
  }

  recvFused(stepId: number, keys: readonly string[], waiter: FusedWaiter): Cancel {
    const { messages } = this.#options;
    const fail = (cause: ShoalError): void => waiter.fail(cause);
    return this.#call(
      recvPath,
      messages.request.encode({ stepId, keys }),
      (bytes) => {
        let outcomes: SlotOutcome[];
        try {
          outcomes = messages.decodeOutcomes(bytes, keys.length);
        } catch (thrown) {
          return fail(ShoalError.from(thrown, 'protocol'));
        }
        waiter.receive(outcomes);
      },
      fail,
    );
  }

  endStep(): void {}

  close(): Promise<void> {
    this.#closed = true;
    this.#client.close();
    return Promise.resolve();
  }

  #call(path: string, request: Buffer, done: (response: Buffer) => void, fail: (cause: ShoalError) => void): Cancel {
    if (this.#closed) {
      fail(new ShoalError('closed', `${this.description} is closed`));
      return () => {};
    }
    const { clock, timeoutMs } = this.#options;
    let isOver = false;
    const call = this.#client.makeUnaryRequest(
      path,
      raw,
      raw,
      request,
      this.#metadata,
      { deadline: clock.wallNow() + timeoutMs },
      (error, response) => {
        if (isOver) return;
        isOver = true;
        if (error === null) done(response!);
        else fail(this.#errorOf(error));
      },
    );
    return () => {
      if (isOver) return;
      isOver = true;
      call.cancel();
    };
  }

  #errorOf(error: Grpc.ServiceError): ShoalError {
    const { status } = this.#options.grpc;
    const codes: Partial<Record<Grpc.status, ErrorCode>> = {
      [status.DEADLINE_EXCEEDED]: 'timeout',
      [status.UNAUTHENTICATED]: 'auth',
      [status.CANCELLED]: 'peer-lost',
      [status.UNAVAILABLE]: 'peer-lost',
      [status.RESOURCE_EXHAUSTED]: 'out-of-memory',
      [status.INVALID_ARGUMENT]: 'protocol',
    };
    return new ShoalError(codes[error.code] ?? 'system', `${this.description}: ${error.details}`, { cause: error });
  }
}

function proofOf(world: string, secret: Uint8Array): string {
  return createHmac('sha256', secret).update(`shoal rendezvous over gRPC\0${world}`).digest('hex');
}
