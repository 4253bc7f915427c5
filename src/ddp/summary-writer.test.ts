/** Event files for TensorBoard, read back by protobufjs with TensorFlow's messages, and by their checksums. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import protobuf from 'protobufjs';
import { afterAll, expect, it } from 'vitest';
import { systemClock } from '../base/clock.ts';
import { maskedCrc32c } from '../base/crc32c.ts';
import { temporaryFolder } from '../base/testing/temporary-folder.ts';
import { SummaryWriter } from './summary-writer.ts';

const directory = temporaryFolder('summaries', afterAll);

/** The parts of TensorFlow's event.proto and summary.proto. */
const Event = protobuf
  .parse(
    `syntax = "proto3";
    message Event { double wall_time = 1; int64 step = 2; oneof what { string file_version = 3; Summary summary = 5; } }
    message Summary { message Value { string tag = 1; oneof value { float simple_value = 2; } } repeated Value value = 1; }`,
    { keepCase: true },
  )
  .root.lookupType('Event');

function eventsOf(path: string): Record<string, unknown>[] {
  const bytes = readFileSync(path);
  const events: Record<string, unknown>[] = [];
  for (let at = 0; at < bytes.length;) {
    const length = Number(bytes.readBigUInt64LE(at));
    expect(bytes.readUInt32LE(at + 8)).toBe(maskedCrc32c(bytes.subarray(at, at + 8)));
    const event = bytes.subarray(at + 12, at + 12 + length);
    expect(bytes.readUInt32LE(at + 12 + length)).toBe(maskedCrc32c(event));
    events.push(Event.toObject(Event.decode(event), { longs: Number }));
    at += 16 + length;
  }
  return events;
}

it('writes scalars as TensorFlow does', () => {
  const writer = new SummaryWriter(join(directory, 'run', 'train'));
  writer.addScalar('loss', 0.5, 0);
  writer.addScalar('Genauigkeit/größte', -1e-3, 300);
  writer.addScalar('loss', Number.NaN, 2 ** 40);
  expect(writer.path).toMatch(/events\.out\.tfevents\.\d{10}\.[^/]+$/);
  const events = eventsOf(writer.path);
  expect(events[0]).toMatchObject({ file_version: 'brain.Event:2' });
  expect(events.slice(1)).toMatchObject([
    { summary: { value: [{ tag: 'loss', simple_value: 0.5 }] } },
    { step: 300, summary: { value: [{ tag: 'Genauigkeit/größte', simple_value: Math.fround(-1e-3) }] } },
    { step: 2 ** 40, summary: { value: [{ tag: 'loss', simple_value: Number.NaN }] } },
  ]);
  for (const { wall_time: time } of events) expect(Math.abs(Number(time) - systemClock.wallNow() / 1000)).toBeLessThan(3600);
});

it('refuses what is no scalar, and folders that cannot be', () => {
  const writer = new SummaryWriter(directory);
  expect(() => writer.addScalar('loss', '1' as never, 0)).toThrow(/addScalar: value .*number/);
  expect(() => writer.addScalar('loss', 1, -1)).toThrow(/addScalar: step/);
  expect(() => writer.addScalar(1 as never, 1, 1)).toThrow(/addScalar: tag/);
  expect(() => new SummaryWriter(1 as never)).toThrow(/SummaryWriter: folder/);
  mkdirSync(join(directory, 'other'));
  writeFileSync(join(directory, 'other', 'file'), '');
  expect(() => new SummaryWriter(join(directory, 'other', 'file'))).toThrow(/EEXIST|ENOTDIR/);
});
