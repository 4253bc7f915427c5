/** Messages of the gRPC worker service: control in Protocol Buffers, tensors as raw bytes behind it.
 *
 *     RecvTensorRequest    { step_id, keys }                 several keys: a fused receive
 *     RecvTensorResponse   u32 length │ { slots: is_dead, dtype, shape, bytes, error } │ bytes of slot 0 │ of slot 1 … */
import type protobuf from 'protobufjs';
import { errorCodes, ShoalError } from '../../base/errors.ts';
import type { SlotOutcome } from '../protocol/tensor-receiver.ts';
import { checkMetadata, readTensor, writable } from '../value/tensor-metadata.ts';
import type { TensorDType } from '../value/tensor-value.ts';

export interface RecvTensorRequest {
  readonly stepId: number;
  readonly keys: readonly string[];
}

export interface WorkerStatus {
  readonly rank: number;
  readonly device: string;
  /** Hexadecimal: it has 64 bits. */
  readonly incarnation: string;
}

interface SlotMessage {
  readonly isDead: boolean;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly code: string;
  readonly error: string;
}

export interface GrpcMessages {
  readonly status: Codec<WorkerStatus>;
  readonly request: Codec<RecvTensorRequest>;
  encodeOutcomes(outcomes: readonly SlotOutcome[]): Buffer;
  /** @throws ShoalError `protocol`. */
  decodeOutcomes(message: Buffer, count: number): SlotOutcome[];
}

interface Codec<T> {
  encode(message: T): Buffer;
  /** @throws Error for bytes that are no such message. */
  decode(bytes: Buffer): T;
}

export function grpcMessages({ Type, Field }: Pick<typeof protobuf, 'Type' | 'Field'>): GrpcMessages {
  const type = (name: string, fields: Record<string, string>): protobuf.Type => {
    const made = new Type(name);
    Object.entries(fields).forEach(([field, kind], index) => {
      const isRepeated = kind.endsWith('[]');
      made.add(new Field(field, index + 1, isRepeated ? kind.slice(0, -2) : kind, isRepeated ? 'repeated' : undefined));
    });
    return made;
  };
  const codec = <T>(of: protobuf.Type): Codec<T> => ({
    encode: (message) => Buffer.from(of.encode(of.fromObject(message as object)).finish()),
    decode: (bytes) => of.toObject(of.decode(bytes), { longs: Number, defaults: true, arrays: true }) as T,
  });
  const slotType = type('Slot', { isDead: 'bool', dtype: 'string', shape: 'uint64[]', bytes: 'uint64', code: 'string', error: 'string' });
  const slotsType = type('RecvTensorResponse', { slots: 'Slot[]' });
  slotsType.add(slotType);
  const slotsCodec = codec<{ slots: readonly SlotMessage[] }>(slotsType);
  return {
    status: codec(type('WorkerStatus', { rank: 'uint32', device: 'string', incarnation: 'string' })),
    request: codec(type('RecvTensorRequest', { stepId: 'uint64', keys: 'string[]' })),
    encodeOutcomes(outcomes) {
      const payloads: Uint8Array[] = [];
      const slots = outcomes.map((outcome): Partial<SlotMessage> => {
        if ('cause' in outcome) return { code: outcome.cause.code, error: outcome.cause.message };
        if (outcome.value === undefined) return { isDead: true };
        const { metadata, bytes } = writable(outcome.value);
        payloads.push(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength));
        return metadata;
      });
      const control = slotsCodec.encode({ slots: slots as SlotMessage[] });
      const length = Buffer.alloc(4);
      length.writeUInt32LE(control.length);
      return Buffer.concat([length, control, ...payloads]);
    },
    decodeOutcomes(message, count) {
      if (message.length < 4) throw new ShoalError('protocol', 'an answer of gRPC has no header');
      const begin = 4 + message.readUInt32LE();
      if (begin > message.length) throw new ShoalError('protocol', 'an answer of gRPC ends in its control part');
      const { slots } = slotsCodec.decode(message.subarray(4, begin));
      if (slots.length !== count) throw new ShoalError('protocol', `an answer of gRPC has ${slots.length} slots; ${count} were asked for`);
      let at = begin;
      return slots.map((slot): SlotOutcome => {
        if (slot.error !== '' || slot.code !== '')
          return { cause: new ShoalError(errorCodes.find((code) => code === slot.code) ?? 'system', slot.error) };
        if (slot.isDead) return { value: undefined };
        const metadata = checkMetadata(slot.dtype as TensorDType, slot.shape, slot.bytes);
        if (slot.bytes > message.length - at) throw new ShoalError('protocol', 'an answer of gRPC ends in a tensor');
        // gRPC delivers bytes at any address.
        const memory = new Uint8Array(message.subarray(at, at + slot.bytes));
        at += slot.bytes;
        return { value: readTensor(metadata, { buffer: memory.buffer, offset: 0 }) };
      });
    },
  };
}
