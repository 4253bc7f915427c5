/** A rank that is stopped or killed before it joins. `npx tsx test/soaks/stopped-rank.ts` does it at all times, and while groups open. */
import { describe, expect, it } from 'vitest';
import { runTrial } from '../soaks/stopped-rank.ts';

describe('the others name the rank that does not join', () => {
  it.each([
    { signal: 'SIGSTOP', index: 4 },
    { signal: 'SIGKILL', index: 5 },
  ])('$signal', async ({ index }) => {
    expect((await runTrial(index, 0)).wrong).toEqual([]);
  });
});
