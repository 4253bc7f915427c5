/** Spellings that people bring from torchrun and mpirun. */
import { describe, expect, it } from 'vitest';
import { commands } from './commands.ts';
import { inOurSpelling } from './habits.ts';

const known = commands.map((add) => add(() => undefined));
const spelt = (line: string): string => inOurSpelling(line.split(' '), known).join(' ');

describe('spellings', () => {
  it.each([
    ['run -np 4 train.ts', 'run -n 4 train.ts'],
    ['run --np=4 train.ts', 'run -n 4 train.ts'],
    ['run --nproc_per_node 4 train.ts', 'run --nproc-per-node 4 train.ts'],
    ['run --nproc_per_node=4 train.ts', 'run --nproc-per-node=4 train.ts'],
    ['run --max_restarts 3 -n 2 train.ts', 'run --max-restarts 3 -n 2 train.ts'],
    [
      'run --rdzv_backend=c10d --rdzv_endpoint=a.b:29400 --rdzv_id j -n 1 x.ts',
      'run --master-addr a.b --master-port 29400 --job-id j -n 1 x.ts',
    ],
    ['run --rdzv-endpoint a.b x.ts', 'run --master-addr a.b x.ts'],
    ['run --rdzv-endpoint [::1]:29400 x.ts', 'run --master-addr [::1] --master-port 29400 x.ts'],
    ['run --rdzv-endpoint fe80::1 x.ts', 'run --master-addr fe80::1 x.ts'],
    ['run --no_python ./a.out', 'run --no-node ./a.out'],
    ['run -q x.ts -np 4 --some_thing=1', 'run -q x.ts -np 4 --some_thing=1'],
    ['run --log-dir -np x.ts', 'run --log-dir -np x.ts'],
    ['run -- x.ts -np 4', 'run -- x.ts -np 4'],
    ['run --nonsense_here x.ts', 'run --nonsense-here x.ts'],
    ['bench all-reduce --warmup-iters 3 -np 2 --in_place', 'bench all-reduce --warmup_iters 3 -n 2 --in-place'],
    ['tune --nproc 4', 'tune -n 4'],
    ['--version', '--version'],
    ['fly --a_b', 'fly --a_b'],
  ])('%s', (typed, ours) => expect(spelt(typed)).toBe(ours));

  it.each([
    ['run -m train', /has no -m: name the file of the script/],
    ['run --hostfile hosts x.ts', /has no --hostfile: start `shoal run --nnodes/],
    ['run --allow-run-as-root -n 2 x.ts', /not needed here, leave it out/],
    ['run -x PATH x.ts', /has no -x: leave it out, because ranks have the whole environment/],
    ['run --rdzv_backend etcd x.ts', /no --rdzv-backend etcd: ranks meet at --master-addr/],
    ['run --rdzv-endpoint', /needs <host>:<port>/],
    ['run --rdzv-endpoint a.b:x -n 2 x.ts', /needs <host>:<port>/],
    ['run --rdzv-endpoint a.b: -n 2 x.ts', /needs <host>:<port>/],
    ['run --rdzv-endpoint :29400 x.ts', /needs <host>:<port>/],
  ])('%s is answered with what to do', (typed, message) => expect(() => spelt(typed)).toThrow(message));
});
