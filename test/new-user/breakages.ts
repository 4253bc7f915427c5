/** Five ways to break a script, and the words that name the cause, where a user looks for it. */
export interface Breakage {
  readonly name: string;
  /** Lines of the script, after the group is there: `group`, and a tensor `x`. */
  readonly lines: string;
  /** Text that the launcher prints: in the first line of its last report, unless the message has several lines. */
  readonly message: RegExp;
  /** Text in the first line of the report. */
  readonly headline: RegExp;
}

export const breakages: readonly Breakage[] = [
  {
    name: 'a rank throws',
    lines: `if (group.rank === 1) throw new Error('data.csv has no column "price"');
await group.allReduce(x);`,
    message: /shoal: rank 1 failed first: it exited with code 1, [^\n]*: Error: data\.csv has no column "price"/,
    headline: /rank 1.*data\.csv has no column "price"/,
  },
  {
    name: 'ranks call different collectives',
    lines: `await (group.rank === 1 ? group.broadcast(x, { root: 0 }) : group.allReduce(x));`,
    message: /disagree on collective #\d+[\s\S]*all-reduce[\s\S]*broken\.mjs:\d+[\s\S]*broadcast[\s\S]*broken\.mjs:\d+/,
    headline: /ranks of group 'world' disagree on collective/,
  },
  {
    name: 'a rank never calls',
    lines: `if (group.rank === 1) await new Promise(() => setInterval(() => undefined, 1000));
await group.allReduce(x, { timeoutMs: 3000 });`,
    message: /failed first: [^\n]*because of rank 1, which had not ended: ShoalError: [^\n]*timed out after 3000 ms, waiting for rank 1/,
    headline: /timed out.*rank 1|rank 1.*(never|not)/,
  },
  {
    name: 'a rank is killed',
    lines: `if (group.rank === 1) process.kill(process.pid, 'SIGKILL');
await group.allReduce(x);`,
    message: /shoal: rank 1 failed first: it was killed by SIGKILL/,
    headline: /rank 1.*SIGKILL/,
  },
  {
    name: 'an option is misspelled',
    lines: `await group.allReduce(x, { opp: 'avg' });`,
    message: /failed first: [^\n]*: ShoalError: allReduce has no option 'opp'; did you mean 'op'\?/,
    headline: /allReduce has no option 'opp'; did you mean 'op'\?/,
  },
];

export function brokenScript({ lines }: Breakage): string {
  return `import { initProcessGroup } from 'shoal';
const group = await initProcessGroup();
const x = group.tensor('float32', [1000]);
await group.allReduce(x);
${lines}
await group.destroy();
`;
}
