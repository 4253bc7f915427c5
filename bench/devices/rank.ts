/** A rank of `run.ts`: the same tensor on a device is reduced in two ways, in turns; the first rank writes their times. */
import { writeFileSync } from 'node:fs';
import { DeviceTensor, initProcessGroup, openDevice } from 'shoal';
import { DeviceCopies } from '../../src/memory/device/device-copies.ts';
import { bufferUsage } from '../../src/memory/device/gpu.ts';
import type { DeviceRound } from './run.ts';

const [bytes, rounds] = [process.env.DEVICE_BENCH_BYTES, process.env.DEVICE_BENCH_ROUNDS].map(Number);
const { device, adapter } = await openDevice();
const group = await initProcessGroup();
const buffer = device.createBuffer({ size: bytes, usage: bufferUsage.copySource | bufferUsage.copyTarget | bufferUsage.storage });
const tensor = new DeviceTensor({ device, buffer, dtype: 'float32' });
const host = group.tensor('float32', [tensor.count]);
const hostBytes = new Uint8Array(host.data.buffer, host.data.byteOffset, host.bytes);
const copies = new DeviceCopies(device);

async function fill(): Promise<void> {
  for (let i = 0; i < host.count; i++) host.data[i] = (i % 1000) + group.rank;
  await copies.write(tensor, hostBytes);
  await group.barrier();
}

/** CPU time of this process since it was last asked, in milliseconds. */
let spent = process.cpuUsage();
function spentMs(): number {
  const { user, system } = process.cpuUsage(spent);
  spent = process.cpuUsage();
  return (user + system) / 1000;
}

async function timed(run: () => Promise<void>): Promise<{ readonly ms: number; readonly cpuMs: number }> {
  await group.barrier();
  spentMs();
  const startMs = performance.now();
  await run();
  const cpuMs = spentMs();
  // Times of the slowest rank.
  const took = Float64Array.of(performance.now() - startMs, cpuMs);
  await group.allReduce(took, { op: 'max' });
  return { ms: took[0], cpuMs: took[1] };
}

async function checked(): Promise<number> {
  await copies.read(tensor, hostBytes);
  let wrong = 0;
  const ranks = (group.size * (group.size - 1)) / 2;
  for (let i = 0; i < host.count; i++) if (host.data[i] !== (i % 1000) * group.size + ranks) wrong += 1;
  return wrong;
}

async function oneAfterTheOther(): Promise<Omit<DeviceRound, 'pipelinedMs' | 'pipelinedCpuMs' | 'wrong'>> {
  await fill();
  const out = await timed(() => copies.read(tensor, hostBytes));
  const reduced = await timed(async () => group.allReduce(host));
  const back = await timed(() => copies.write(tensor, hostBytes));
  return { outMs: out.ms, allReduceMs: reduced.ms, inMs: back.ms, serialCpuMs: out.cpuMs + reduced.cpuMs + back.cpuMs };
}

async function pipelined(): Promise<Pick<DeviceRound, 'pipelinedMs' | 'pipelinedCpuMs'>> {
  await fill();
  const { ms, cpuMs } = await timed(async () => group.allReduce(tensor));
  return { pipelinedMs: ms, pipelinedCpuMs: cpuMs };
}

const results: DeviceRound[] = [];
// The first round warms up.
for (let round = 0; round <= rounds; round++) {
  // The order of the two ways changes from round to round.
  const before = round % 2 === 0 ? await pipelined() : undefined;
  const wrongBefore = before === undefined ? 0 : await checked();
  const serial = await oneAfterTheOther();
  const wrong = wrongBefore + (await checked());
  const pipeline = before ?? (await pipelined());
  const wrongAfter = before === undefined ? await checked() : 0;
  if (round > 0) results.push({ ...serial, ...pipeline, wrong: wrong + wrongAfter });
}
if (group.rank === 0) {
  const { architecture, description } = adapter.info;
  writeFileSync(process.env.DEVICE_BENCH_OUT ?? '/dev/stdout', JSON.stringify({ adapter: `${architecture}: ${description}`, results }));
}
await group.destroy();
device.destroy();
