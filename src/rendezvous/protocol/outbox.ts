/** The outgoing records and writes of one end of a connection. Records are gathered into messages. All posts of one turn leave together:
 *
 *     1. writes without immediates     slots of fused requests; small tensors that one `Done` record announces together
 *     2. messages                      as many as there are credits for; without credits everything waits, in order
 *     3. writes with immediates        they must not arrive before the records about them
 *
 *  The connection's account with the process's arbiter bounds the bytes in flight. Waiting tensors leave in the order of their requests, in
 *  parts, so that a tensor that becomes ready late overtakes tensors that were requested after it.
 *
 *  If an immediate costs nothing (`tcp`), each write has its own; if it costs a message (`shm`), small
 *  tensors that are ready in the same turn are announced together. If several sources can be one write (`gather`), small tensors with
 *  adjacent destinations are one. */
import { ShoalError } from '../../base/errors.ts';
import { Fifo } from '../../base/collections/fifo.ts';
import type { CreditAccount } from '../../scheduler/arbiter.ts';
import type { RemoteRegion, RemoteSpan, Span } from '../../fabric/fabric.ts';
import type { TensorCounters } from './counters.ts';
import { nothingToWrite, spanOf, type Release } from '../value/tensor-value.ts';
import { creditsMax, messageBytesWanted, messageHeaderBytes, nowhere, protocolVersion, RecordType } from './records.ts';
import { ByteWriter, type ByteReader } from '../../base/bytes.ts';

/** The connection, as far as this needs it. */
export interface Wire {
  /** The message may be used again when this returns. */
  send(message: Uint8Array): void;
  /** `onDone` is called when the source may change: sent, or lost, with why. */
  write(source: Span, target: RemoteSpan, immediate: number | undefined, onDone: Release): void;
  /** One write from several sources, without an immediate. */
  gather?(sources: readonly Span[], target: RemoteSpan, onDone: Release): void;
  /** An immediate costs a message of its own. */
  readonly announcesApart: boolean;
}

export interface PendingWrite {
  /** The request that it answers, with others or alone. */
  readonly owner: number;
  readonly source: Span;
  readonly region: RemoteRegion;
  readonly offset: number;
  /** Bytes of the place: what the tensor does not take of it may be anything. */
  readonly room: number;
  /** Tells the receiver that the request is answered, or that this piece is there. */
  immediate: number | undefined;
  /** True for a write beside which there are others of the same tensor, which must not come after it. */
  readonly isPiece?: boolean;
  readonly onDone: Release;
}

export interface OutboxOptions {
  readonly wire: Wire;
  /** The account of the connection; when it has room again, `pump` is called. */
  readonly account: CreditAccount;
  readonly counters: TensorCounters;
  /** Calls the function at the end of this turn. */
  readonly atEndOfTurn: (callback: () => void) => void;
}

/** Larger tensors are announced one by one: each is of use before the others. */
const announcedTogetherBytesMax = 64 * 1024;
const doneCountMax = 8192;
/** Larger writes are several. */
const partBytesMax = 4 * 2 ** 20;
/** Whoever asks for a tensor needs it: as what comes first in the next step. */
const priority = 0;
/** Most bytes between two places that one write covers. */
const padding = spanOf(new Uint8Array(64));

export class Outbox {
  readonly #options: OutboxOptions;
  readonly #writer = new ByteWriter(4096);
  /** Messages that are full. */
  readonly #sealed = new Fifo<Uint8Array>();
  #writes: PendingWrite[] = [];
  #scheduled = false;
  #closed = false;
  /** Messages that may be sent. */
  #credits = creditsMax;
  /** Messages of the peer that credits are still owed for. */
  #owed = 0;

  constructor(options: OutboxOptions) {
    this.#options = options;
    this.#beginMessage();
  }

  /** Begins a record. Its fields follow, in the same turn. */
  record(type: number): ByteWriter {
    if (this.#writer.length > messageBytesWanted) {
      this.#sealed.push(Uint8Array.from(this.#writer.bytes));
      this.#beginMessage();
    }
    this.#schedule();
    this.#writer.u8(type);
    return this.#writer;
  }

  write(write: PendingWrite): void {
    const { bytes } = write.source;
    if (bytes <= partBytesMax) this.#writes.push(write);
    // The parts are as equal as can be.
    else this.#writes.push(...cutWrite(write, Math.ceil(bytes / Math.ceil(bytes / partBytesMax))));
    this.#schedule();
  }

  /** There may be room for what waits. */
  pump(): void {
    if (this.#writes.length > 0) this.#schedule();
  }

  /** Everything of a request is posted: what was posted last says so if it is the request's, else a write of no bytes. */
  complete(request: number): void {
    const last = this.#writes.at(-1);
    if (last?.owner === request) last.immediate = request;
    else
      this.write({ owner: request, source: nothingToWrite, region: nowhere.region, offset: 0, room: 0, immediate: request, onDone() {} });
  }

  /** Takes back the writes of one request that have not left. */
  withdraw(owner: number): void {
    if (!this.#writes.some((write) => write.owner === owner)) return;
    const withdrawn = this.#writes.filter((write) => write.owner === owner);
    this.#writes = this.#writes.filter((write) => write.owner !== owner);
    for (const { onDone } of withdrawn) onDone();
  }

  /** The header of a message of the peer. @returns false when it has no records. @throws ShoalError `protocol`. */
  onMessage(reader: ByteReader): boolean {
    const version = reader.u8();
    if (version !== protocolVersion) {
      const message = `the peer speaks version ${version} of the rendezvous protocol, this process version ${protocolVersion}; run one version of shoal`;
      throw new ShoalError('protocol', message);
    }
    if (reader.u8() !== 0) throw new ShoalError('protocol', 'a control message has unknown flags');
    const returned = reader.u16();
    if (returned > creditsMax - this.#credits)
      throw new ShoalError('protocol', `the peer gives back ${returned} credits; ${creditsMax - this.#credits} are out`);
    this.#credits += returned;
    if (returned > 0 && (this.#sealed.length > 0 || this.#writer.length > messageHeaderBytes)) this.#schedule();
    if (reader.done) return false;
    if (++this.#owed > creditsMax)
      throw new ShoalError('protocol', `the peer sends more than the ${creditsMax} messages it has credits for`);
    if (this.#owed >= creditsMax / 2) this.#schedule();
    return true;
  }

  /** @param cause of what has not left. */
  close(cause: ShoalError): void {
    this.#closed = true;
    for (const { onDone } of this.#writes.splice(0)) onDone(cause);
  }

  readonly #flush = (): void => {
    this.#scheduled = false;
    if (this.#closed) return;
    const records = this.#sealed.length > 0 || this.#writer.length > messageHeaderBytes;
    if (records && this.#credits === 0) return this.#giveCredits();
    const writes = this.#admitted();
    const small = this.#options.wire.announcesApart ? writes.filter(isSmall) : [];
    const together = small.length > 1 ? small : [];
    const alone: PendingWrite[] = [];
    const others: PendingWrite[] = [];
    for (const write of writes) (write.immediate !== undefined && !(together.length > 0 && isSmall(write)) ? alone : others).push(write);
    this.#postAll(others);
    for (let first = 0; first < together.length; first += doneCountMax) this.#announce(together.slice(first, first + doneCountMax));
    if (this.#send()) {
      for (const write of alone) this.#post(write, write.immediate);
      this.#giveCredits();
    } else {
      for (const { source } of alone) this.#finished(source.bytes);
      this.#writes = alone.concat(this.#writes);
    }
  };

  /** Takes what the credit has room for from what waits. */
  #admitted(): readonly PendingWrite[] {
    const { account } = this.#options;
    const writes = this.#writes;
    // Numbers of requests go around 2^32. What is of one request keeps its order.
    writes.sort((a, b) => (a.owner - b.owner) | 0);
    const count = writes.findIndex(({ source: { bytes } }) => {
      if (bytes === 0) return false;
      if (!account.admits(bytes, priority)) return true;
      account.started(bytes);
      return false;
    });
    this.#writes = count < 0 ? [] : writes.slice(count);
    return count < 0 ? writes : writes.slice(0, count);
  }

  #announce(writes: readonly PendingWrite[]): void {
    const writer = this.record(RecordType.Done);
    writer.u16(writes.length);
    for (const { immediate } of writes) writer.u32(immediate!);
  }

  /** Writes without immediates: in any order. */
  #postAll(writes: PendingWrite[]): void {
    const { gather } = this.#options.wire;
    if (gather === undefined || writes.length < 2) {
      for (const write of writes) this.#post(write, undefined);
      return;
    }
    writes.sort((a, b) => a.region.rkey - b.region.rkey || a.offset - b.offset);
    for (let first = 0, next = 1; first < writes.length; first = next++) {
      while (next < writes.length && follows(writes[next - 1], writes[next])) next++;
      if (next - first === 1) this.#post(writes[first], undefined);
      else this.#gather(writes.slice(first, next));
    }
  }

  #gather(writes: readonly PendingWrite[]): void {
    const { wire, counters } = this.#options;
    const sources: Span[] = [];
    const [{ region, offset }] = writes;
    const last = writes.length - 1;
    writes.forEach(({ source, room }, index) => {
      counters.writes++;
      counters.bytesWritten += source.bytes;
      sources.push(source);
      if (index < last && room > source.bytes) sources.push({ ...padding, bytes: room - source.bytes });
    });
    wire.gather!(sources, { region, offset }, (cause) => {
      for (const { source, onDone } of writes) {
        onDone(cause);
        this.#finished(source.bytes);
      }
      this.#options.account.offerRoom();
    });
  }

  #post({ source, region, offset, onDone }: PendingWrite, immediate: number | undefined): void {
    const { wire, counters } = this.#options;
    if (immediate !== undefined) counters.immediates++;
    if (source.bytes > 0) {
      counters.writes++;
      counters.bytesWritten += source.bytes;
    }
    if (source.bytes === 0 && immediate === undefined) return onDone();
    wire.write(source, { region, offset }, immediate, (cause) => {
      onDone(cause);
      if (this.#finished(source.bytes)) this.#options.account.offerRoom();
    });
  }

  /** @returns whether that makes room. */
  #finished(bytes: number): boolean {
    if (bytes > 0) this.#options.account.finished(bytes);
    return bytes > 0;
  }

  /** @returns false when messages are left for want of credits. */
  #send(): boolean {
    if (this.#writer.length > messageHeaderBytes) {
      if (this.#sealed.length === 0 && this.#credits > 0) {
        this.#sendMessage(this.#writer.bytes);
        this.#beginMessage();
        return true;
      }
      this.#sealed.push(Uint8Array.from(this.#writer.bytes));
      this.#beginMessage();
    }
    while (this.#sealed.length > 0) {
      if (this.#credits === 0) return false;
      this.#sendMessage(this.#sealed.shift()!);
    }
    return true;
  }

  #sendMessage(message: Uint8Array): void {
    this.#credits--;
    this.#stamp(message);
    this.#options.counters.messagesSent++;
    this.#options.wire.send(message);
  }

  /** Gives credits back in a message of their own, when half of them are owed and nothing else is to be said. */
  #giveCredits(): void {
    if (this.#owed < creditsMax / 2) return;
    const message = new Uint8Array(messageHeaderBytes);
    message[0] = protocolVersion;
    this.#stamp(message);
    this.#options.counters.messagesSent++;
    this.#options.counters.creditMessagesSent++;
    this.#options.wire.send(message);
  }

  #stamp(message: Uint8Array): void {
    message[2] = this.#owed & 0xff;
    message[3] = this.#owed >> 8;
    this.#owed = 0;
  }

  #beginMessage(): void {
    this.#writer.truncate(0);
    this.#writer.u8(protocolVersion);
    this.#writer.u8(0);
    this.#writer.u16(0);
  }

  #schedule(): void {
    if (this.#scheduled || this.#closed) return;
    this.#scheduled = true;
    this.#options.atEndOfTurn(this.#flush);
  }
}

/** The same bytes in writes of their own, of at most `partBytes`. The last has the immediate of the whole; the source may change when all
 *  of them are done.
 *  @param immediateOf of the others. Default: none. */
export function cutWrite(
  { source, offset, immediate, onDone, ...write }: PendingWrite,
  partBytes: number,
  immediateOf: (part: number) => number | undefined = () => undefined,
): PendingWrite[] {
  const count = Math.ceil(source.bytes / partBytes);
  let missing = count;
  let failure: ShoalError | undefined;
  return Array.from({ length: count }, (_, part) => {
    const at = part * partBytes;
    const bytes = Math.min(partBytes, source.bytes - at);
    return {
      ...write,
      source: { ...source, offset: source.offset + at, bytes },
      offset: offset + at,
      room: bytes,
      isPiece: true,
      immediate: part === count - 1 ? immediate : immediateOf(part),
      onDone: (cause) => {
        failure ??= cause;
        if (--missing === 0) onDone(failure);
      },
    };
  });
}

/** Does its place begin where the other's ends, with little between the tensors? */
function follows(before: PendingWrite, { source, region, offset }: PendingWrite): boolean {
  const { bytes } = before.source;
  return (
    before.region === region &&
    before.offset + before.room === offset &&
    before.room - bytes <= padding.bytes &&
    Math.min(bytes, source.bytes) > 0 &&
    Math.max(bytes, source.bytes) <= announcedTogetherBytesMax
  );
}

/** Announced writes leave before writes with immediates of their own: small ones may be announced. */
function isSmall({ immediate, isPiece = false, source }: PendingWrite): boolean {
  return immediate !== undefined && !isPiece && source.bytes <= announcedTogetherBytesMax;
}
