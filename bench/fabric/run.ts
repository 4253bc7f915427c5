/** Throughput and latency of the fabrics between two processes of this host, beside plain `net` and a plain memcpy, in
 *  one interleaved run: the machine's noise meets all alike.
 *
 *    tsx bench/fabric/run.ts [--rounds 9] [--bytes 268435456] [--out bench/results/fabric.json]
 *
 *  Throughput: writes of one size into one place until `--bytes` are over, the last with an immediate that the peer
 *  answers; one way. Latency: half of the time from a 64-byte write with immediate to its answer. */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { programArguments } from '../arguments.ts';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import type { Connection, FabricAddress, RemoteRegion } from '../../src/fabric/fabric.ts';
import { loadNative } from '../../src/memory/native.ts';
import { createRegionAllocator } from '../../src/memory/regions/allocator.ts';
import { subjects } from './subjects.ts';

/** Load of the machine; above the number of CPUs it was busy with other things: the figures are then a lower bound. */
const loadBefore = os.loadavg()[0];
const { values } = programArguments(import.meta.url, {
  options: { rounds: { type: 'string', default: '9' }, bytes: { type: 'string', default: String(2 ** 28) }, out: { type: 'string' } },
});
const rounds = Number(values.rounds);
const bytesTotal = Number(values.bytes);
const sizes = [4096, 65_536, 2 ** 20, 25 * 2 ** 20].filter((size) => size <= bytesTotal);
const latencyBytes = 64;
const latencyCount = Math.min(500, Math.max(10, bytesTotal / 65_536));
const regionBytes = Math.max(...sizes);

/** Moves `count` × `bytes` to the receiver and returns when it has answered. */
type Move = (bytes: number, count: number) => Promise<void>;

const receiver = spawn(
  process.execPath,
  ['--import', 'tsx', fileURLToPath(new URL('./receiver.ts', import.meta.url)), String(regionBytes)],
  {
    stdio: ['pipe', 'pipe', 'inherit'],
  },
);
const first = await createInterface({ input: receiver.stdout })[Symbol.asyncIterator]().next();
const addresses = JSON.parse(first.value as string) as {
  fabrics: Record<string, { address: FabricAddress; remote: RemoteRegion }>;
  raw: number;
};

const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
const source = regions.create(regionBytes);
new Uint32Array(source.buffer, 0, regionBytes >> 2).forEach((_, k, words) => (words[k] = Math.imul(k, 2_654_435_761)));
const expectedSum = String(sumOf(source.buffer));

const movers = new Map<string, Move>();
const checks: (() => Promise<void>)[] = [];
const closers: (() => Promise<void>)[] = [];
for (const { title, provider } of subjects.filter((subject) => subject.title in addresses.fabrics)) {
  const { address, remote } = addresses.fabrics[title];
  const options = {
    identity: { world: 'bench', rank: 0 },
    secret: Buffer.from('bench'),
    clock: systemClock,
    random: systemRandom,
    regions,
  };
  const fabric = provider.create(options);
  const connection = await fabric.connect(address, { peer: { world: 'bench', rank: 1 }, timeoutMs: 10_000 });
  movers.set(title, moverOver(connection, remote));
  closers.push(() => fabric.close());
}
movers.set('net', rawMover(addresses.raw));
const landing = new Uint8Array(regionBytes);
movers.set('memcpy', async (bytes, count) => {
  const from = new Uint8Array(source.buffer, 0, bytes);
  for (let k = 0; k < count; k++) landing.set(from);
});

const samples = new Map<string, number[]>();
for (let round = -1; round < rounds; round++) {
  for (const bytes of sizes) {
    const count = Math.max(1, Math.floor(bytesTotal / bytes / 4 ** Math.max(0, 2 - sizes.indexOf(bytes))));
    for (const [name, move] of movers) {
      const startMs = systemClock.now();
      await move(bytes, count);
      // The first round warms up.
      if (round >= 0) sample(`${name} ${bytes}`, (bytes * count) / (systemClock.now() - startMs) / 1e6);
    }
  }
  for (const [name, move] of movers) {
    if (name === 'memcpy') continue;
    const startMs = systemClock.now();
    for (let k = 0; k < latencyCount; k++) await move(latencyBytes, 1);
    if (round >= 0) sample(`${name} latency`, ((systemClock.now() - startMs) / latencyCount / 2) * 1000);
  }
}
for (const check of checks) await check();
await Promise.all(closers.map((close) => close()));
receiver.stdin.end();

const results = [...samples].map(([key, all]) => {
  const [name, what] = key.split(' ');
  const sorted = all.toSorted((a, b) => a - b);
  const summary = { median: round3(sorted[sorted.length >> 1]), min: round3(sorted[0]), max: round3(sorted.at(-1)!) };
  return what === 'latency'
    ? { fabric: name, bytes: latencyBytes, latencyUs: summary }
    : { fabric: name, bytes: Number(what), gigabytesPerSecond: summary };
});
const machine = { cpu: os.cpus()[0].model, cpus: os.availableParallelism(), node: process.version, kernel: os.release(), loadBefore };
const report = { machine, rounds, bytesTotal, checksum: expectedSum, results };
console.log(JSON.stringify(report, undefined, 2));
if (values.out !== undefined) writeFileSync(values.out, `${JSON.stringify(report, undefined, 2)}\n`);

function moverOver(connection: Connection, remote: RemoteRegion): Move {
  let answered = (): void => undefined;
  let onSum = (_sum: string): void => undefined;
  connection.setHandlers({
    onMessage: (message) => onSum(Buffer.from(message).toString()),
    onImmediate: () => answered(),
    onClose: () => undefined,
  });
  checks.push(async () => {
    const sum = new Promise<string>((resolve) => {
      onSum = resolve;
    });
    await moveOver(regionBytes, 1);
    await connection.send(Buffer.from('sum'));
    if ((await sum) !== expectedSum) throw new Error(`${connection.description} moved wrong bytes`);
  });
  const moveOver: Move = async (bytes, count) => {
    const answer = new Promise<void>((resolve) => {
      answered = resolve;
    });
    const span = { region: source, offset: 0, bytes };
    const target = { region: remote, offset: 0 };
    const posted: Promise<void>[] = [];
    for (let k = 0; k < count; k++) {
      posted.push(connection.write(span, target, k === count - 1 ? 1 : undefined));
      if (posted.length >= 64) await posted.shift();
    }
    await Promise.all([...posted, answer]);
  };
  return moveOver;
}

/** One connection per kind of move, made when first used. */
function rawMover(port: number): Move {
  const moves = new Map<string, Move>();
  return async (bytes, count) => {
    const key = `${bytes}×${count}`;
    let move = moves.get(key);
    if (move === undefined) {
      const socket = net.connect({ port, host: '127.0.0.1', noDelay: true });
      const head = Buffer.alloc(16);
      head.writeDoubleLE(bytes, 0);
      head.writeDoubleLE(bytes * count, 8);
      socket.write(head);
      let answered = (): void => undefined;
      socket.on('data', () => answered());
      closers.push(async () => void socket.destroy());
      const payload = Buffer.from(source.buffer, 0, bytes);
      move = async () => {
        const answer = new Promise<void>((resolve) => {
          answered = resolve;
        });
        for (let k = 0; k < count; k++) {
          if (!socket.write(payload) && k + 1 < count) await new Promise((resolve) => socket.once('drain', resolve));
        }
        await answer;
      };
      moves.set(key, move);
    }
    await move(bytes, count);
  };
}

function sumOf(buffer: ArrayBufferLike): number {
  return new Uint32Array(buffer, 0, regionBytes >> 2).reduce((sum, word) => (sum + word) >>> 0, 0);
}

function sample(key: string, value: number): void {
  const all = samples.get(key);
  if (all === undefined) samples.set(key, [value]);
  else all.push(value);
}

function round3(value: number): number {
  return Number(value.toPrecision(3));
}
