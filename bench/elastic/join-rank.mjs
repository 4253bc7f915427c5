// A rank of bench/elastic that trains by elastic.run; rank 1 kills itself, is started again, and gets so many mebibytes of state. Prints
// milliseconds: from the boundary at which all others stop to the next step; from when the newcomer is there to when it has the state; of the
// first and of the fastest of five messages to it that are as large, the first into memory that nobody has used before.
import { initProcessGroup } from 'shoal';
import { elastic } from 'shoal/ddp';

const bytes = Number(process.argv[2]) * 2 ** 20;
// The state is there before the group: for what a newcomer does after it has been taken in, the others wait.
const [parameters, moments] = [0, 1].map(() => new Float32Array(bytes / 8).fill(process.env.SHOAL_JOIN === undefined ? 1 : 0));
const world = await initProcessGroup();
const ranks = Number(process.argv[3]);
const state = { step: 0, tensors: [parameters, moments] };
let stoppedMs;
const enteredMs = performance.now();
const last = await elastic.run(world, state, async (group, _, boundary) => {
  const newcomer = group.globalRanks.indexOf(ranks);
  if (newcomer >= 0) {
    const stateMs = performance.now() - enteredMs;
    if (parameters.at(-1) !== 1 || moments[0] !== 1) throw new Error('the state has not come');
    await group.barrier();
    const pauseMs = performance.now() - stoppedMs;
    const linkMs = [];
    const message = group.tensor('float32', [bytes / 4]);
    for (let round = 0; round < 5; round++) {
      await group.barrier();
      const startMs = performance.now();
      if (group.rank === 0) await group.send(message, newcomer);
      if (group.rank === newcomer) await group.recv(message, 0);
      await group.barrier();
      linkMs.push(performance.now() - startMs);
    }
    if (group.rank === 0) console.log(`pause ${pauseMs}\nfirst ${linkMs[0]}\nlink ${Math.min(...linkMs)}`);
    if (group.rank === newcomer) console.log(`state ${stateMs}`);
    return;
  }
  for (;;) {
    if (state.step === 20 && process.env.RANK === '1') process.kill(process.pid, 'SIGKILL');
    await group.barrier();
    state.step++;
    stoppedMs = performance.now();
    await boundary();
  }
});
await last.destroy();
