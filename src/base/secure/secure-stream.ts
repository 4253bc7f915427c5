/** Bytes of a connection after its handshake, plain or in encrypted records, for services with few of them. */
import type { Writable } from 'node:stream';
import { RecordReader, scriptCiphers, sealParts, type LinkKeys, type RecordSealer } from './records.ts';

export class SecureStream {
  readonly #socket: Writable;
  readonly #sealer: RecordSealer | undefined;
  readonly #reader: RecordReader | undefined;
  #onBytes: ((bytes: Uint8Array) => void) | undefined;

  /** @param keys undefined: what follows is plain. */
  constructor(socket: Writable, keys: LinkKeys | undefined) {
    this.#socket = socket;
    if (keys === undefined) return;
    this.#sealer = scriptCiphers.sealer(keys.aead, keys.send);
    this.#reader = new RecordReader({
      opener: scriptCiphers.opener(keys.aead, keys.receive),
      isReady: () => true,
      target: (bytes) => Buffer.allocUnsafe(bytes),
      onOpened: (target) => this.#onBytes?.(target),
    });
  }

  /** Sends bytes; those of one turn of the event loop travel together. */
  write(pieces: readonly Uint8Array[]): void {
    if (this.#socket.writableCorked === 0) {
      this.#socket.cork();
      process.nextTick(() => this.#socket.uncork());
    }
    for (const piece of this.#sealer ? [sealParts(this.#sealer, pieces)] : pieces) this.#socket.write(piece);
  }

  /** Hands over what has come. @throws ShoalError `protocol` for records that are not the peer's; what `onBytes` throws. */
  open(chunk: Uint8Array, onBytes: (bytes: Uint8Array) => void): void {
    this.#onBytes = onBytes;
    if (this.#reader) this.#reader.push(chunk);
    else onBytes(chunk);
  }
}
