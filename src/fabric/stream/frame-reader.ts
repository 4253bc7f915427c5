/** The receiving half of a framed socket: says where the next bytes go, and what is complete. It must not know what frames mean.
 *
 *  Node's sockets ask for the next buffer before every read (`onread.buffer`). This one is asked for
 *
 *     32 header bytes │ exactly the payload, at its destination │ 32 header bytes │ …
 *
 *  so that no byte of a write passes through a buffer of ours. The kernel's copy is the only one. Where no writes come, but
 *  messages, which stay in buffers of ours anyway, small frames are read ahead: a header and the bytes behind it are one read,
 *  and are copied from there. */
import { assert } from '../../base/assert.ts';
import { RecordReader, recordPlainBytesMax, scriptCiphers, type LinkKeys, type RecordOpener } from '../../base/secure/records.ts';
import type { EventPolling } from '../event-polling.ts';
import type { FrameSenderOptions } from './frame-sender.ts';
import { decodeHeader, emptyHeader, FrameType, headerBytes, type FrameHeader } from './frame.ts';

/** After this many frames without a write among them, no write is expected. */
const othersInRow = 16;
/** Buffer to read ahead into where no write is expected, shared by all sockets: it is parsed before anything else is read. */
const usualAhead = Buffer.allocUnsafeSlow(headerBytes + 288);

/** Memory for records with several frames, or parts of them, shared by all sockets. */
const opened = Buffer.allocUnsafeSlow(recordPlainBytesMax);

export interface FrameReaderOptions extends Pick<FrameSenderOptions, 'counters' | 'ciphers'> {
  readonly polling?: EventPolling;
  /** Buffer to read ahead into from the first frame on, for a stream that is known to have small frames only. Several sockets may
   *  share it. Default: frames are read to their destinations until some in a row have not been writes. */
  readonly readAhead?: Buffer;
  /** True while frames are wanted. */
  isOpen(): boolean;
  /** The destination of the payload of `header.bytes` > 0, exactly that long. */
  place(header: Readonly<FrameHeader>): Uint8Array;
  /** The frame is complete; `payload` is the destination that `place` gave, undefined for none. */
  onFrame(header: Readonly<FrameHeader>, payload: Uint8Array | undefined): void;
}

export class FrameReader {
  /** True while no frame may be given out. */
  isHolding = false;
  /** Bytes that were already read ahead when the reader was told to hold. */
  #kept: Buffer | undefined;
  /** The records that frames travel in; undefined: the stream is not encrypted. */
  #records: RecordReader | undefined;
  opener: RecordOpener | undefined;
  readonly #options: FrameReaderOptions;
  readonly #headerBuffer = Buffer.allocUnsafe(headerBytes);
  readonly #headerView = new DataView(this.#headerBuffer.buffer, this.#headerBuffer.byteOffset, headerBytes);
  readonly #header = emptyHeader();
  #headerFilled = 0;
  #payload: Uint8Array | undefined;
  #payloadFilled = 0;
  #othersInRow = 0;

  constructor(options: FrameReaderOptions) {
    this.#options = options;
  }

  /** The destination being filled now; undefined between payloads. */
  get receivingInto(): Uint8Array | undefined {
    return this.#payload;
  }

  /** The bytes that follow are records. */
  encrypt({ aead, receive }: LinkKeys): void {
    const { ciphers = scriptCiphers } = this.#options;
    this.opener = ciphers.opener(aead, receive);
    this.#records = new RecordReader({
      opener: this.opener,
      isReady: () => this.#options.isOpen() && !this.isHolding,
      target: (bytes) => this.#targetOf(bytes),
      onOpened: (target) => {
        if (target.buffer === opened.buffer) this.#onAhead(target, target.length);
        else this.#onBytes(target.length, target);
      },
    });
  }

  /** Bytes have come that could not be given out. */
  get hasKept(): boolean {
    return this.#kept !== undefined || this.#records?.hasKept === true;
  }

  /** Buffer for the next read. */
  nextBuffer(): Uint8Array {
    if (this.#records) return this.#records.nextBuffer();
    const ahead = this.#options.readAhead ?? (this.#othersInRow < othersInRow ? undefined : usualAhead);
    if (ahead !== undefined && this.#missingBytes < ahead.length) return ahead;
    if (this.#payload === undefined) return this.#headerFilled === 0 ? this.#headerBuffer : this.#headerBuffer.subarray(this.#headerFilled);
    return this.#payloadFilled === 0 ? this.#payload : this.#payload.subarray(this.#payloadFilled);
  }

  /** Goes on with what was kept. @throws as `onRead`. */
  resume(): void {
    const kept = this.#kept;
    this.#kept = undefined;
    if (kept) this.#onAhead(kept, kept.length);
    this.#records?.resume();
  }

  /** Takes bytes that were read into the buffer that `nextBuffer` gave.
   *  @throws ShoalError `protocol` for records that are not the peer's; errors of the owner's callbacks. */
  onRead(bytes: number, buffer: Uint8Array): void {
    if (this.#records) this.#records.onRead(bytes, buffer);
    else if (buffer === usualAhead || buffer === this.#options.readAhead) this.#onAhead(buffer, bytes);
    else this.#onBytes(bytes, buffer);
  }

  /** Memory for so many bytes of a record: their destination, if all of them belong there. */
  #targetOf(bytes: number): Uint8Array {
    const payload = this.#payload;
    const isWhole = payload !== undefined && bytes <= this.#missingBytes;
    return isWhole ? payload.subarray(this.#payloadFilled, this.#payloadFilled + bytes) : opened.subarray(0, bytes);
  }

  /** Forgets the payload that is being received. */
  stop(): void {
    this.#payload = undefined;
  }

  /** Bytes still missing of the header or payload that is being received. */
  get #missingBytes(): number {
    return this.#payload === undefined ? headerBytes - this.#headerFilled : this.#payload.length - this.#payloadFilled;
  }

  /** Handles bytes that were read ahead as if each part had been read by itself. */
  #onAhead(ahead: Uint8Array, bytes: number): void {
    for (let at = 0; at < bytes && this.#options.isOpen();) {
      if (this.isHolding) {
        this.#kept = Buffer.from(ahead.subarray(at, bytes));
        return;
      }
      const taken = Math.min(this.#missingBytes, bytes - at);
      const filled = this.#payload === undefined ? this.#headerFilled : this.#payloadFilled;
      (this.#payload ?? this.#headerBuffer).set(ahead.subarray(at, at + taken), filled);
      this.#onBytes(taken, ahead);
      at += taken;
    }
  }

  #onBytes(bytes: number, buffer: Uint8Array): void {
    const payload = this.#payload;
    if (payload === undefined) {
      this.#headerFilled += bytes;
      if (this.#headerFilled < headerBytes) return;
      this.#headerFilled = 0;
      this.#onHeader();
      return;
    }
    this.#payloadFilled += bytes;
    const { counters } = this.#options;
    if (this.#header.type === FrameType.Write) {
      // Compares with the buffer that the kernel was really given, not with the one that was intended.
      if (buffer.buffer === payload.buffer) counters.bytesReceivedInPlace += bytes;
      else counters.bytesCopied += bytes;
    }
    if (this.#payloadFilled < payload.length) return;
    this.#payload = undefined;
    this.#options.onFrame(this.#header, payload);
  }

  #onHeader(): void {
    const header = this.#header;
    decodeHeader(this.#headerView, 0, header);
    this.#options.counters.framesReceived++;
    this.#options.polling?.onFrame();
    this.#othersInRow = header.type === FrameType.Write ? 0 : this.#othersInRow + 1;
    if (header.bytes === 0 || header.type === FrameType.Written) {
      this.#options.onFrame(header, undefined);
      return;
    }
    const destination = this.#options.place(header);
    assert(destination.length === header.bytes, () => `destination of ${destination.length} bytes for a payload of ${header.bytes}`);
    this.#payload = destination;
    this.#payloadFilled = 0;
  }
}
