/** Bytes that both of two hosts send to each other at once, over a number of plain sockets: what a path carries without Shoal. Rank 0 prints
 *  the milliseconds of each round, from the first write to the last byte received.
 *
 *    npx tsx bench/network/run.ts --hosts 2 --rate-mbit 1000 --delay-us 25000 --loss-percent 0.1 -- \
 *      node bench/network/plain-sockets.mjs <sockets> <MiB> <rounds> */
import { once } from 'node:events';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const [count, mebibytes, rounds] = process.argv.slice(2).map(Number);
const { RANK: rank, WORLD_SIZE: size, MASTER_ADDR: host } = process.env;
if (size !== '2' || ![count, mebibytes, rounds].every((each) => Number.isInteger(each) && each > 0))
  throw new Error('plain-sockets.mjs: needs two ranks, and the numbers of sockets, MiB and rounds');
const port = 23_456;
const bytes = (mebibytes * 2 ** 20) / count;
const piece = Buffer.alloc(256 * 1024, 1);

const sockets = rank === '0' ? await accepted() : await dialled();
let received = 0;
let wanted = 0;
let onAll = () => {};
for (const socket of sockets) {
  socket.setNoDelay(true);
  socket.on('data', ({ length }) => {
    received += length;
    if (received >= wanted) onAll();
  });
  // The peer ends when it has what it wants.
  socket.on('error', () => {});
}
const times = [];
for (let round = 1; round <= rounds; round++) {
  wanted = round * count * bytes;
  const startMs = performance.now();
  for (const socket of sockets) send(socket, bytes);
  if (received < wanted) await new Promise((resolve) => (onAll = resolve));
  times.push(Math.round(performance.now() - startMs));
}
if (rank === '0') console.log(`${count} sockets, ${mebibytes} MiB each way: ${times.join(', ')} ms`);
// The peer may still wait for bytes that are under way.
await sleep(500);
process.exit(0);

function send(socket, left) {
  while (left > 0) {
    const next = Math.min(left, piece.length);
    left -= next;
    if (socket.write(piece.subarray(0, next))) continue;
    socket.once('drain', () => send(socket, left));
    return;
  }
}

async function accepted() {
  const sockets = [];
  const server = net.createServer((socket) => sockets.push(socket)).listen(port, '0.0.0.0');
  while (sockets.length < count) await once(server, 'connection');
  server.close();
  return sockets;
}

async function dialled() {
  const sockets = [];
  while (sockets.length < count) {
    const socket = net.connect({ host, port });
    try {
      await once(socket, 'connect');
      sockets.push(socket);
    } catch {
      await sleep(50);
    }
  }
  return sockets;
}
