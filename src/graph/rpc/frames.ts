/** Frames of calls over a connection with messages: 16 bytes, then the body or a fragment of it. Pure.
 *
 *      0 kind │ 1 method │ 2 flags │ 3 – │ 4 call number │ 8 number of the part │ 12 first call that has no answer yet */
import { ShoalError } from '../../base/errors.ts';
import { joinPieces, piecesBytes, type Pieces } from './rpc.ts';

/** Smaller numbers are versions of rendezvous' protocol, whose messages share the connection. */
const firstKind = 16;
export const FrameKind = { hello: 17, request: 18, part: 19, end: 20, error: 21, cancel: 22 } as const;
const kinds = new Set<number>(Object.values(FrameKind));

export interface Frame {
  readonly kind: number;
  readonly method: number;
  readonly call: number;
  readonly part: number;
  readonly acked: number;
  readonly body: Uint8Array;
}

const headerBytes = 16;
const moreFlag = 1;

/** The frames of one body, each at most `fragmentBytes` long. */
export function* encodeFrame(frame: Omit<Frame, 'body'>, body: Pieces, fragmentBytes: number): Generator<Uint8Array> {
  const bytes = piecesBytes(body);
  if (bytes + headerBytes <= fragmentBytes) {
    const message = joinPieces(body, headerBytes);
    writeHeader(message, frame, 0);
    yield message;
    return;
  }
  const whole = joinPieces(body);
  const step = fragmentBytes - headerBytes;
  for (let from = 0; from < bytes; from += step) {
    const message = joinPieces([whole.subarray(from, from + step)], headerBytes);
    writeHeader(message, frame, from + step < bytes ? moreFlag : 0);
    yield message;
  }
}

function writeHeader(message: Uint8Array, { kind, method, call, part, acked }: Omit<Frame, 'body'>, flags: number): void {
  const view = new DataView(message.buffer);
  message[0] = kind;
  message[1] = method;
  message[2] = flags;
  view.setUint32(4, call, true);
  view.setUint32(8, part, true);
  view.setUint32(12, acked, true);
}

/** Is a message a call's, or a tensor's? */
export function isFrame(message: Uint8Array): boolean {
  return message.length === 0 || message[0] >= firstKind;
}

/** Puts fragments together. One per connection. */
export class FrameReader {
  readonly #bytesMax: number;
  #fragments: Uint8Array[] = [];
  #bytes = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /** @param message stays the caller's. @returns the frame when it is whole. @throws ShoalError `protocol`. */
  read(message: Uint8Array): Frame | undefined {
    if (message.length < headerBytes || !kinds.has(message[0])) throw new ShoalError('protocol', 'a call is not well formed');
    const view = new DataView(message.buffer, message.byteOffset);
    this.#bytes += message.length - headerBytes;
    if (this.#bytes > this.#bytesMax)
      throw new ShoalError('out-of-memory', `a call of more than ${this.#bytesMax} bytes; raise messageBytesMax`);
    this.#fragments.push(message.slice(headerBytes));
    if ((message[2] & moreFlag) !== 0) return undefined;
    const body = this.#fragments.length === 1 ? this.#fragments[0] : joinPieces(this.#fragments);
    this.#fragments = [];
    this.#bytes = 0;
    return {
      kind: message[0],
      method: message[1],
      call: view.getUint32(4, true),
      part: view.getUint32(8, true),
      acked: view.getUint32(12, true),
      // Of a Buffer, `slice` gives a view.
      body: body.byteOffset % 8 === 0 && !Buffer.isBuffer(body) ? body : Uint8Array.from(body),
    };
  }
}
