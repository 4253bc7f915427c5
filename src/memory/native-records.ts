/** The addon's ciphers of encrypted connections, typed: native/records.h describes them, base/secure/records.ts has the format and the
 *  twin. */
import { must } from '../base/assert.ts';
import { aeads, type Aead } from '../base/secure/noise.ts';
import { scriptCiphers, type RecordCiphers, type RecordOpener, type RecordSealer } from '../base/secure/records.ts';

declare const opaque: unique symbol;
/** Handle of one direction; only functions of the addon look inside. */
export interface RecordsHandle {
  readonly [opaque]: 'records';
}

export interface NativeRecords {
  /** Undefined where this process exports no OpenSSL. */
  createRecords(aead: number, key: Uint8Array, seals: boolean): RecordsHandle | undefined;
  /** Returns the end of the records in the target. */
  sealRecords(records: RecordsHandle, source: Uint8Array, target: Uint8Array, at: number): number;
  openRecord(records: RecordsHandle, sealed: Uint8Array, target: Uint8Array): boolean;
  /** Wires seal and open what goes over a socket from now on; of a descriptor that `takeSocket` has made. */
  bindRecords(descriptor: number, sealer: RecordsHandle, opener: RecordsHandle): void;
}

/** One direction of a connection, which either seals or opens. */
class NativeCipher implements RecordSealer, RecordOpener {
  readonly #native: NativeRecords;
  readonly records: RecordsHandle;

  constructor(native: NativeRecords, records: RecordsHandle) {
    this.#native = native;
    this.records = records;
  }

  seal(source: Uint8Array, target: Uint8Array, at: number): number {
    return this.#native.sealRecords(this.records, source, target, at);
  }

  open(sealed: Uint8Array, target: Uint8Array): boolean {
    return this.#native.openRecord(this.records, sealed, target);
  }
}

/** The fastest ciphers there are: the addon's, with the OpenSSL of this process, else those of node:crypto. */
export function recordCiphers(native: NativeRecords | undefined): RecordCiphers {
  if (native === undefined || native.createRecords(0, new Uint8Array(32), true) === undefined) return scriptCiphers;
  const make = (aead: Aead, key: Uint8Array, seals: boolean): NativeCipher =>
    new NativeCipher(
      native,
      must(native.createRecords(aeads.indexOf(aead), key, seals), () => 'the process has OpenSSL'),
    );
  return {
    sealer: (aead, key) => make(aead, key, true),
    opener: (aead, key) => make(aead, key, false),
    bind: (descriptor, sealer, opener) => {
      if (sealer instanceof NativeCipher && opener instanceof NativeCipher) native.bindRecords(descriptor, sealer.records, opener.records);
    },
  };
}
