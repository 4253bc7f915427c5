/** Tensors between workers over gRPC, like TensorFlow's RecvTensor: every receive is one call, and its tensors are copied on both
 *  sides. Rendezvous' conformance suite runs on it (test/graph/grpc-carrier.test.ts).
 *
 *      request   JSON: step and key of each tensor
 *      answer    u32 length │ JSON: slots │ bytes of slot 0 │ of slot 1 … */
import * as grpc from '@grpc/grpc-js';
import { ShoalError, type ErrorCode, type ErrorData } from '../../src/base/errors.ts';
import type { TensorCarrier } from '../../src/rendezvous/protocol/tensor-carrier.ts';
import type { WorkerIdentity } from '../../src/rendezvous/carriers/tensor-connection.ts';
import type { FusedWaiter, SlotOutcome } from '../../src/rendezvous/protocol/tensor-carrier.ts';
import type { Cancel, Waiter } from '../../src/rendezvous/table/rendezvous.ts';
import { hostValue, isStaged, type SentValue } from '../../src/rendezvous/value/staged-tensor.ts';
import { checkMetadata, readTensor, writable, type TensorMetadata } from '../../src/rendezvous/value/tensor-metadata.ts';
import type { TensorValue } from '../../src/rendezvous/value/tensor-value.ts';
import { connect, pathOf, raw, serve, type Served } from './calls.ts';

export type Item = readonly [stepId: number, key: string];
type Take = (stepId: number, key: string, waiter: Waiter<SentValue>) => Cancel;
type SlotHead = TensorMetadata | { readonly isDead: true } | { readonly error: ErrorData };

/** Largest part of an answer to `RecvSome`, in bytes of elements, unless one tensor has more. */
const partBytesMax = 2 ** 20;
const deadlineMs = 300_000;

/** Answers other workers. @param take where their requests meet the tensors that are sent here. */
export function serveTensors(address: string, self: WorkerIdentity, take: Take): Promise<Served> {
  return serve(
    address,
    {
      GetStatus: (_, answer) => answer(null, Buffer.from(JSON.stringify({ ...self, incarnation: String(self.incarnation) }))),
      RecvTensor(call, answer) {
        const items = JSON.parse(call.request.toString()) as Item[];
        const outcomes: SlotOutcome[] = [];
        let missing = items.length;
        takeAll(take, items, call, (slot, outcome) => {
          outcomes[slot] = outcome;
          if (--missing > 0) return false;
          answer(null, encodeSlots(outcomes.entries()));
          outcomes.forEach(release);
          return true;
        });
      },
    },
    {
      RecvSome(call) {
        const items = JSON.parse(call.request.toString()) as Item[];
        let missing = items.length;
        let ready: [number, SlotOutcome][] = [];
        const flush = (): void => {
          for (const part of partsOf(ready.sort(([a], [b]) => a - b))) call.write(encodeSlots(part));
          for (const [, outcome] of ready) release(outcome);
          ready = [];
          if (missing === 0) call.end();
        };
        takeAll(take, items, call, (slot, outcome) => {
          // Tensors that become ready in one turn leave together at its end.
          if (ready.push([slot, outcome]) === 1) setImmediate(flush);
          return --missing === 0;
        });
      },
    },
  );
}

/** @param known called with every tensor until it returns that the call is answered or cancelled by the caller. */
function takeAll(
  take: Take,
  items: readonly Item[],
  call: { on(event: 'cancelled', listener: () => void): unknown },
  known: (slot: number, outcome: SlotOutcome) => boolean,
): void {
  const held: SlotOutcome[] = [];
  let isOver = false;
  const settle = (slot: number, outcome: SlotOutcome): void => {
    if (isOver) return release(outcome);
    held.push(outcome);
    isOver = known(slot, outcome);
  };
  const cancels = items.map(([stepId, key], slot) =>
    take(stepId, key, {
      receive(value) {
        if (value === undefined || !isStaged(value)) return settle(slot, { value });
        hostValue(value).then(
          (read) => settle(slot, { value: read }),
          (cause: unknown) => settle(slot, { cause: ShoalError.from(cause) }),
        );
      },
      fail: (cause) => settle(slot, { cause }),
    }),
  );
  call.on('cancelled', () => {
    if (isOver) return;
    isOver = true;
    for (const cancel of cancels) cancel();
    // No other caller can ask for tensors that have come already.
    held.forEach(release);
  });
}

function release(outcome: SlotOutcome): void {
  if ('value' in outcome) outcome.value?.release?.();
}

function* partsOf(ready: readonly [number, SlotOutcome][]): Generator<[number, SlotOutcome][]> {
  let part: [number, SlotOutcome][] = [];
  let bytes = 0;
  for (const each of ready) {
    const own = bytesOf(each[1]);
    if (part.length > 0 && bytes + own > partBytesMax) {
      yield part;
      [part, bytes] = [[], 0];
    }
    part.push(each);
    bytes += own;
  }
  yield part;
}

function bytesOf(outcome: SlotOutcome): number {
  const data = 'value' in outcome ? outcome.value?.data : undefined;
  return ArrayBuffer.isView(data) ? data.byteLength : 0;
}

function encodeSlots(slots: Iterable<readonly [number, SlotOutcome]>): Buffer {
  const payloads: Uint8Array[] = [];
  const heads = Array.from(slots, ([slot, outcome]): readonly [number, SlotHead] => {
    if ('cause' in outcome) return [slot, { error: outcome.cause.toData() }];
    if (outcome.value === undefined) return [slot, { isDead: true }];
    const { metadata, bytes } = writable(outcome.value);
    payloads.push(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
    return [slot, metadata];
  });
  const control = Buffer.from(JSON.stringify(heads));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(control.length);
  return Buffer.concat([length, control, ...payloads]);
}

function decodeSlots(message: Buffer): (readonly [number, SlotOutcome])[] {
  let at = 4 + message.readUInt32LE();
  const heads = JSON.parse(message.toString('utf8', 4, at)) as (readonly [number, SlotHead])[];
  return heads.map(([slot, head]) => {
    if ('error' in head) return [slot, { cause: ShoalError.fromData(head.error) }];
    if ('isDead' in head) return [slot, { value: undefined }];
    const metadata = checkMetadata(head.dtype, head.shape, head.bytes);
    // gRPC delivers bytes at any address.
    const memory = new Uint8Array(message.subarray(at, (at += metadata.bytes)));
    return [slot, { value: readTensor(metadata, { buffer: memory.buffer, offset: 0 }) }];
  });
}

/** Asks one other worker. */
export class GrpcTensors implements TensorCarrier {
  readonly description: string;
  readonly stats = { calls: 0, bytesSent: 0, bytesReceived: 0 };
  readonly #client: grpc.Client;
  #closed = false;

  constructor(address: string) {
    this.description = `grpc ${address}`;
    this.#client = connect(address);
  }

  /** Asks the other worker for its identity. */
  identify(): Promise<WorkerIdentity> {
    return new Promise((resolve, reject) =>
      this.#call(
        'GetStatus',
        [],
        (bytes) => {
          const { incarnation, ...rest } = JSON.parse(bytes.toString()) as Omit<WorkerIdentity, 'incarnation'> & { incarnation: string };
          resolve({ ...rest, incarnation: BigInt(incarnation) });
        },
        reject,
      ),
    );
  }

  recv(stepId: number, key: string, waiter: Waiter<TensorValue>): Cancel {
    const fail = (cause: ShoalError): void => waiter.fail(cause);
    const receive = ([outcome]: readonly SlotOutcome[]): void =>
      'cause' in outcome ? waiter.fail(outcome.cause) : waiter.receive(outcome.value);
    return this.recvFused(stepId, [key], { receive, fail });
  }

  recvFused(stepId: number, keys: readonly string[], { receive, fail }: FusedWaiter): Cancel {
    const items = keys.map((key): Item => [stepId, key]);
    return this.#call('RecvTensor', items, (bytes) => receive(decodeSlots(bytes).map(([, outcome]) => outcome)), fail);
  }

  /** One request for tensors of any steps: `onSlot` is called with each when it comes. Resolves when all have come. */
  recvSome(items: readonly Item[], onSlot: (index: number, outcome: SlotOutcome) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const request = this.#requestOf(items);
      const stream = this.#client.makeServerStreamRequest(pathOf('RecvSome'), raw, raw, request, new grpc.Metadata(), deadline());
      stream.on('data', (bytes: Buffer) => {
        this.stats.bytesReceived += bytes.length;
        for (const [index, outcome] of decodeSlots(bytes)) onSlot(index, outcome);
      });
      stream.once('error', (thrown: grpc.ServiceError) => reject(this.#errorOf(thrown)));
      stream.once('end', resolve);
    });
  }

  endStep(): void {}

  close(): Promise<void> {
    this.#closed = true;
    this.#client.close();
    return Promise.resolve();
  }

  #requestOf(items: readonly Item[]): Buffer {
    const request = Buffer.from(JSON.stringify(items));
    this.stats.calls++;
    this.stats.bytesSent += request.length;
    return request;
  }

  #call(method: string, items: readonly Item[], done: (response: Buffer) => void, fail: (cause: ShoalError) => void): Cancel {
    if (this.#closed) {
      fail(new ShoalError('closed', `${this.description} is closed`));
      return () => {};
    }
    let isOver = false;
    const request = this.#requestOf(items);
    const call = this.#client.makeUnaryRequest(pathOf(method), raw, raw, request, new grpc.Metadata(), deadline(), (error, response) => {
      if (isOver) return;
      isOver = true;
      if (error !== null) return fail(this.#errorOf(error));
      this.stats.bytesReceived += response!.length;
      done(response!);
    });
    return () => {
      if (isOver) return;
      isOver = true;
      call.cancel();
    };
  }

  #errorOf(error: grpc.ServiceError): ShoalError {
    const { DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE } = grpc.status;
    const codes: Partial<Record<grpc.status, ErrorCode>> = {
      [DEADLINE_EXCEEDED]: 'timeout',
      [CANCELLED]: 'peer-lost',
      [UNAVAILABLE]: 'peer-lost',
    };
    return new ShoalError(codes[error.code] ?? 'system', `${this.description}: ${error.details}`, { cause: error });
  }
}

function deadline(): grpc.CallOptions {
  return { deadline: performance.timeOrigin + performance.now() + deadlineMs };
}
