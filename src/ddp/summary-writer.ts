/** Scalars for TensorBoard, in event files as TensorFlow writes them: TFRecords of protobuf messages.
 *
 *      record    length u64 │ CRC-32C of it, masked │ Event │ CRC-32C of it, masked
 *      Event     1 wall_time double, 2 step int64, 3 file_version string, 5 Summary { 1 Value { 1 tag string, 2 simple_value float } } */
import { appendFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { ByteWriter } from '../base/bytes.ts';
import { systemClock } from '../base/clock.ts';
import { maskedCrc32c } from '../base/crc32c.ts';
import { makeFolders } from '../base/files/make-folders.ts';
import { anyText, checkArgument, count, that } from '../base/schema.ts';

/** NaN and infinities too: losses have them. */
const aNumber = that<number>('a number', (value) => typeof value === 'number');

/** torch's `SummaryWriter`, for scalars: one file, of one process. Each call appends to it, so that there is nothing to flush. */
export class SummaryWriter {
  /** The file: `events.out.tfevents.…`. */
  readonly path: string;

  /** @param folder made if it is not there; TensorBoard shows each folder as a run. @throws errors of the file system. */
  constructor(folder: string) {
    checkArgument('SummaryWriter: folder', folder, anyText);
    makeFolders(folder);
    const [seconds, fraction] = (systemClock.wallNow() / 1000).toFixed(6).split('.');
    this.path = join(folder, `events.out.tfevents.${seconds}.${hostname()}.${process.pid}.${fraction}`);
    this.#append(delimited(3, Buffer.from('brain.Event:2')));
  }

  /** @param step whole, from 0: an epoch, or a count of batches. @throws ShoalError `usage`; errors of the file system. */
  addScalar(tag: string, value: number, step: number): void {
    checkArgument('addScalar: tag', tag, anyText);
    checkArgument('addScalar: value', value, aNumber);
    checkArgument('addScalar: step', step, count);
    const simple = Buffer.alloc(5);
    simple[0] = (2 << 3) | 5;
    simple.writeFloatLE(value, 1);
    const summary = delimited(1, Buffer.concat([delimited(1, Buffer.from(tag)), simple]));
    this.#append(varint(2 << 3, step), delimited(5, summary));
  }

  #append(...fields: readonly Buffer[]): void {
    const wallTime = Buffer.alloc(9);
    wallTime[0] = (1 << 3) | 1;
    wallTime.writeDoubleLE(systemClock.wallNow() / 1000, 1);
    const event = Buffer.concat([wallTime, ...fields]);
    const length = Buffer.alloc(8);
    length.writeUInt32LE(event.length);
    appendFileSync(this.path, Buffer.concat([length, checksum(length), event, checksum(event)]));
  }
}

function varint(key: number, value: number): Buffer {
  const writer = new ByteWriter();
  writer.u8(key);
  writer.varint(value);
  return Buffer.from(writer.bytes);
}

/** A field of text, bytes or a message. */
function delimited(field: number, bytes: Buffer): Buffer {
  return Buffer.concat([varint((field << 3) | 2, bytes.length), bytes]);
}

function checksum(bytes: Buffer): Buffer {
  const masked = Buffer.alloc(4);
  masked.writeUInt32LE(maskedCrc32c(bytes));
  return masked;
}
