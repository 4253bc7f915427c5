/** The receiving process of bench/fabric/run.ts: one region behind every fabric, and a plain `net` server beside them.
 *  Prints its addresses as one JSON line, answers, and ends with its standard input. */
import net from 'node:net';
import { systemClock } from '../../src/base/clock.ts';
import { systemRandom } from '../../src/base/random.ts';
import type { Connection, RemoteRegion } from '../../src/fabric/fabric.ts';
import { loadNative } from '../../src/memory/native.ts';
import { createRegionAllocator } from '../../src/memory/regions/allocator.ts';
import { subjects } from './subjects.ts';

const regionBytes = Number(process.argv[2]);
const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
const region = regions.create(regionBytes);

/** Answers an immediate, or the message 'sum' with the sum of the region's 32-bit words. */
function answer(connection: Connection): void {
  const empty = { region, offset: 0, bytes: 0 };
  const nowhere = { region: { rkey: 0, bytes: 0, handle: '' }, offset: 0 };
  connection.setHandlers({
    onMessage: () =>
      void connection.send(
        Buffer.from(String(new Uint32Array(region.buffer, 0, regionBytes >> 2).reduce((sum, word) => (sum + word) >>> 0, 0))),
      ),
    onImmediate: (immediate) => void connection.write(empty, nowhere, immediate),
    onClose: () => undefined,
  });
}

const fabrics: Record<string, unknown> = {};
for (const { title, provider } of subjects.filter((subject) => subject.provider.unavailable() === undefined)) {
  const options = {
    identity: { world: 'bench', rank: 1 },
    secret: Buffer.from('bench'),
    clock: systemClock,
    random: systemRandom,
    regions,
  };
  const fabric = provider.create(options);
  const { rkey, bytes, handle }: RemoteRegion = fabric.register(region);
  fabrics[title] = { address: await fabric.listen(answer), remote: { rkey, bytes, handle } };
}

// A plain net server as programs use it: Node's own buffers, copied to where the bytes belong. A connection begins with two
// doubles, bytes per write and bytes per answer.
const raw = net.createServer((socket) => {
  socket.setNoDelay(true);
  socket.once('readable', () => {
    const head = socket.read(16) as Buffer;
    const [writeBytes, answerBytes] = [head.readDoubleLE(0), head.readDoubleLE(8)];
    const bytes = new Uint8Array(region.buffer);
    let received = 0;
    socket.on('data', (chunk: Buffer) => {
      for (let rest = chunk; rest.length > 0;) {
        const at = received % writeBytes;
        const part = rest.subarray(0, writeBytes - at);
        bytes.set(part, at);
        received += part.length;
        rest = rest.subarray(part.length);
        if (received % answerBytes === 0) socket.write('.');
      }
    });
  });
});
await new Promise<void>((resolve) => raw.listen(0, '127.0.0.1', resolve));
process.stdout.write(`${JSON.stringify({ fabrics, raw: (raw.address() as net.AddressInfo).port })}\n`);
process.stdin.on('end', () => process.exit(0)).resume();
