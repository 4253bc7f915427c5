import { initProcessGroup, ReduceOp } from 'shoal';

const group = await initProcessGroup(); // from the environment; a world of 1 when nothing is set
const x = group.tensor('float32', [1024]); // shared memory; x.data is a Float32Array
x.data.fill(group.rank + 1);
await group.allReduce(x, { op: ReduceOp.Sum }); // in place, the same bits on every rank
const work = group.broadcast(new Int32Array([7, 8, 9])); // any typed array will do
work.waitSync(); // for loops that do not await
console.log(`rank ${group.rank} of ${group.size}: ${x.data[0]}`);
await group.destroy();
