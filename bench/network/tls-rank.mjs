/** One of two ranks that exchange messages over node:tls, as an all-reduce of two ranks does: both send so many bytes and receive as many, at the
 *  same time, over one connection. Prints what `shoal bench --json -` prints, as far as encryption.ts reads it.
 *
 *    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… SHOAL_SECRET=… node tls-rank.mjs 8:2000:400,33554432:6:2 */
import { hkdfSync } from 'node:crypto';
import { once } from 'node:events';
import tls from 'node:tls';

const { RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, SHOAL_SECRET } = process.env;
if (WORLD_SIZE !== '2') throw new Error('tls-rank.mjs: needs two ranks');
const key = Buffer.from(hkdfSync('sha256', SHOAL_SECRET, '', 'tls-rank', 32));
// The cipher that Shoal takes, too, where processors have instructions for AES.
const options = { ciphers: 'PSK-AES256-GCM-SHA384', maxVersion: 'TLSv1.2' };
const socket = await (RANK === '0' ? accept() : dial());
socket.setNoDelay(true);

let received = 0;
let wanted = 0;
let done = () => undefined;
socket.on('data', ({ length }) => {
  received += length;
  if (received >= wanted) done();
});

const rows = [];
for (const [bytes, iterations, warmup] of process.argv[2].split(',').map((text) => text.split(':').map(Number))) {
  const message = Buffer.alloc(bytes, 1);
  const timesUs = [];
  for (let iteration = -warmup; iteration < iterations; iteration++) {
    const startMs = performance.now();
    await exchange(message);
    if (iteration >= 0) timesUs.push((performance.now() - startMs) * 1000);
  }
  rows.push({ size: bytes, inPlace: { medianUs: timesUs.sort((a, b) => a - b)[timesUs.length >> 1] } });
}
if (RANK === '0') console.log(JSON.stringify({ rows }));
socket.end();

function exchange(message) {
  const isOver = new Promise((resolve) => (done = resolve));
  wanted += message.length;
  socket.write(message);
  if (received >= wanted) done();
  return isOver;
}

async function accept() {
  const server = tls.createServer({ ...options, pskCallback: () => key }).listen(Number(MASTER_PORT), MASTER_ADDR);
  const [connection] = await once(server, 'secureConnection');
  server.close();
  return connection;
}

async function dial() {
  for (let attempt = 0; ; attempt++) {
    const pskCallback = () => ({ psk: key, identity: 'rank 1' });
    const connection = tls.connect({
      ...options,
      host: MASTER_ADDR,
      port: Number(MASTER_PORT),
      pskCallback,
      checkServerIdentity: () => undefined,
    });
    try {
      await once(connection, 'secureConnect');
      return connection;
    } catch (error) {
      if (attempt === 100) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
