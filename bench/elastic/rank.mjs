// A rank of bench/elastic: all-reduces until it is told the number of steps; the victim kills itself, and all others print how long after that
// their next all-reduce was complete. Arguments: file for the time of the kill, way to go on (of run.ts), victim, mebibytes that the victim
// has in memory, milliseconds that the others go on afterwards.
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { initProcessGroup, isShoalError } from 'shoal';

const [file, way, victim, mebibytes = '0', longerMs = '0'] = process.argv.slice(2);
const steps = 400;
const now = () => performance.timeOrigin + performance.now();
const wasKilled = existsSync(file);
let group = await initProcessGroup();
let isOver = false;
const x = group.tensor('float32', [1 << 18]);
const memory = process.env.RANK === victim ? Array.from({ length: Number(mebibytes) / 64 }, () => Buffer.alloc(1 << 26, 1)) : [];
for (let step = 0; step < steps; step++) {
  if (!wasKilled && step === steps / 2 && process.env.RANK === victim) {
    // It is there whole, or not at all.
    writeFileSync(`${file}.new`, String(now()));
    renameSync(`${file}.new`, file);
    process.kill(process.pid, 'SIGKILL');
    memory.length = 0; // until here it is used
  }
  // A call that began before may have ended well after the kill.
  const beganAfter = existsSync(file);
  try {
    x.data.fill(1);
    await group.allReduce(x);
    if (x.data[0] !== group.size) throw new Error(`a sum of ${group.size} ones is ${x.data[0]}`);
  } catch (error) {
    if (!way.startsWith('shrink') || !isShoalError(error) || error.code !== 'peer-lost') throw error;
    group = await group.shrink();
    step--;
    continue;
  }
  if (isOver || !beganAfter) continue;
  console.log(`gap ${now() - Number(readFileSync(file, 'utf8'))}`);
  isOver = true;
}
await sleep(Number(longerMs));
await group.destroy();
