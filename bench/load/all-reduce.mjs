// Times all-reduces of 85 MiB in plain arrays while other processes keep the CPUs busy:
//
//   node dist/tools/cli/main.js run -q -n 3 bench/load/all-reduce.mjs 3
//
// The argument is the number of busy processes. Rank 0 prints milliseconds: median, best and worst of ten. To compare commits, run it in a built
// clone of each, in turns.
import { spawn } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { initProcessGroup, ReduceOp } from 'shoal';

const group = await initProcessGroup();
const gradient = new Float32Array(22_369_621).fill(1);
const count = group.rank === 0 ? Number(process.argv[2] ?? 3) : 0;
const busy = Array.from({ length: count }, () => spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }));
const timesMs = [];
try {
  for (let round = 0; round < 12; round++) {
    await sleep(100);
    await group.barrier();
    const beganMs = performance.now();
    await group.allReduce(gradient, { op: ReduceOp.Avg });
    // The first ones make the plan and the memory.
    if (round > 1) timesMs.push(performance.now() - beganMs);
  }
} finally {
  for (const process of busy) process.kill('SIGKILL');
}
const sorted = timesMs.toSorted((a, b) => a - b).map(Math.round);
if (group.rank === 0) console.log(`median ${sorted[5]}, best ${sorted[0]}, worst ${sorted[9]}`);
await group.destroy();
