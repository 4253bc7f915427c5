/** Jobs that stop as soon as their ranks have joined. `npx tsx test/soaks/start-stop.ts` does it more often. */
import { describe, expect, it } from 'vitest';
import { runTrial } from '../soaks/start-stop.ts';
import { startRanks } from '../support/ranks.ts';

describe('a rank that is gone before the main thread of another one knows that the world is open', () => {
  it.each([
    { first: 'destroy', told: { ok: true }, code: 0 },
    { first: 'throw', told: { code: 'peer-lost', peer: 1 }, code: 1 },
  ])('$first', async ({ first, told, code }) => {
    await using world = await startRanks({ fixture: 'late-main', n: 2, env: { FIRST: first } });
    const [waiting, leaving] = world.ranks;
    expect(await leaving.exited).toMatchObject({ code });
    waiting.tell();
    const { lines, stderr } = await waiting.exited;
    expect(stderr).toBe('');
    expect(lines).toEqual([told]);
  });
});

describe('jobs that stop as soon as they have started', () => {
  it.each([0, 1, 2, 3, 4, 5])('trial %i', async (index) => {
    const { name, wrong, ended } = await runTrial(index);
    expect({ name, wrong, ...(wrong.length > 0 && { ended }) }).toEqual({ name, wrong: [] });
  });
});
