// A rank of bench/elastic that trains by elastic.run, in steps that wait for as long as a device would compute; rank 1 kills itself, is started
// again, and gets so many mebibytes of state: parameters and two moments. Prints milliseconds. With `follow`, where the others go on: by how
// much the longest step while the newcomer follows, or that in which it enters, is longer than others; of a step before the loss, and of one
// that the newcomer follows. With `stand`, where the others stand still: from when the newcomer is there to when it has the state. With
// `message`, where there is no state: of the first and of the fastest of five messages to the newcomer, of arrays as large, and of the fastest of
// a tensor as large, which takes one copy.
import { setTimeout as sleep } from 'node:timers/promises';
import { initProcessGroup, ReduceOp } from 'shoal';
import { elastic } from 'shoal/ddp';

const [mebibytes, ranks, computeMs] = process.argv.slice(2, 5).map(Number);
const way = process.argv[5];
const elements = Math.floor((mebibytes * 2 ** 20) / 12);
// The state is there before the group: for what a newcomer does after it has been taken in, the others wait.
const tensors = [0, 1, 2].map(() => new Float32Array(elements).fill(process.env.SHOAL_JOIN === undefined ? 1 : 0));
const gradient = new Float32Array(elements).fill(1);
const world = await initProcessGroup();
const state = { step: 0, tensors: way === 'message' ? [] : tensors };
const enteredMs = performance.now();
let begunMs;
/** Milliseconds from the begin of each step to that of the next one, by the group of the next one. */
const steps = new Map();

const parts = {
  averages: async (group) => {
    if (state.step === 20 && process.env.RANK === '1') process.kill(process.pid, 'SIGKILL');
    const nowMs = performance.now();
    if (begunMs !== undefined) steps.set(group, [...(steps.get(group) ?? []), nowMs - begunMs]);
    const newcomer = group.globalRanks.indexOf(ranks);
    if (newcomer >= 0) return report(group, newcomer);
    begunMs = nowMs;
    await sleep(computeMs);
    await group.allReduce(gradient, { op: ReduceOp.Avg });
    return [gradient];
  },
  update: (_, [average]) => {
    for (const tensor of tensors) for (let index = elements - 1; index >= 0; index -= 1024) tensor[index] += average[index];
  },
};
const whole = async (group, _, boundary) => {
  if (process.env.SHOAL_JOIN !== undefined && way === 'stand') console.log(`state ${performance.now() - enteredMs}`);
  for (let averages; (averages = await parts.averages(group)) !== undefined; await boundary()) {
    parts.update(state, averages);
    state.step++;
  }
};
const last = await elastic.run(world, state, way === 'follow' ? parts : whole);
await last.destroy();

/** Milliseconds of five messages from rank 0 to the newcomer. */
async function messagesMs(group, newcomer, values) {
  const timesMs = [];
  for (let round = 0; round < 5; round++) {
    await group.barrier();
    const startMs = performance.now();
    for (const value of values) {
      if (group.rank === 0) await group.send(value, newcomer);
      if (group.rank === newcomer) await group.recv(value, 0);
    }
    await group.barrier();
    timesMs.push(performance.now() - startMs);
  }
  return timesMs;
}

async function report(group, newcomer) {
  for (const tensor of state.tensors)
    if ([tensor[(elements - 1) % 1024], tensor[elements - 1]].some((each) => each !== state.step + 1))
      throw new Error('the state is not whole');
  if (way === 'message') {
    const arraysMs = await messagesMs(group, newcomer, tensors);
    const tensorMs = await messagesMs(group, newcomer, [group.tensor('float32', [3 * elements])]);
    if (group.rank === 0) console.log(`first ${arraysMs[0]}\nlink ${Math.min(...arraysMs)}\ntensor ${Math.min(...tensorMs)}`);
  }
  if (group.rank !== 0 || way !== 'follow') return;
  const [alone, , followed, [entry]] = [...steps.values()];
  const [aloneMs, followedMs] = [alone, followed].map(([, ...others]) => others.sort((a, b) => a - b)[others.length >> 1]);
  console.log(`pause ${Math.max(...followed, entry) - aloneMs}\nalone ${aloneMs}\nfollowed ${followedMs}`);
}
