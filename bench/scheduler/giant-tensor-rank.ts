/** One rank of bench/scheduler/giant-tensor.ts: all-reduces of one tensor, as it is and in parts, in turns. Prints each turn, as JSON. */
import { initProcessGroup } from 'shoal';
import { systemClock } from '../../src/base/clock.ts';

const [bytes, rounds] = [process.env.BYTES, process.env.ROUNDS].map(Number);
const group = await initProcessGroup();
const scheduled = await group.scheduled();
const [whole, cut] = [group, scheduled].map((where) => where.tensor('float32', [bytes / 4]));
const turns: { plainMs: number; scheduledMs: number }[] = [];

async function timed(run: () => PromiseLike<void>): Promise<number> {
  await group.barrier();
  const from = systemClock.now();
  await run();
  return systemClock.now() - from;
}

for (let round = 0; round <= rounds; round++) {
  const plain = (): Promise<number> => timed(() => group.allReduce(whole));
  const inParts = (): Promise<number> => timed(() => scheduled.allReduce(cut, { name: 'giant' }));
  // The order changes, as the second one finds a network that has just been used.
  const [first, second] = round % 2 === 0 ? [plain, inParts] : [inParts, plain];
  const [a, b] = [await first(), await second()];
  // The first round warms up.
  if (round > 0) turns.push(round % 2 === 0 ? { plainMs: a, scheduledMs: b } : { plainMs: b, scheduledMs: a });
}
const { creditBytes, partitionBytes } = scheduled.scheduling;
if (group.rank === 0) console.log(JSON.stringify({ turns, creditBytes, partitionBytes }));
await scheduled.destroy();
await group.destroy();
