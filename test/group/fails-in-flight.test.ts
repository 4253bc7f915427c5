/** A rank that fails while a large collective is in flight. `npx tsx test/soaks/fails-in-flight.ts` does it more often. */
import { describe, expect, it } from 'vitest';
import { runTrial } from '../soaks/fails-in-flight.ts';

describe('the launcher ends, and names the rank that failed', () => {
  // The trials cover every way to fail, and every fabric.
  it.each([0, 1, 2, 3])('trial %i', async (index) => {
    const { name, wrong, ended } = await runTrial(index, 5 * index);
    expect({ name, wrong, ...(wrong.length > 0 && { ended }) }).toEqual({ name, wrong: [] });
  });
});
