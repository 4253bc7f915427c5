/** Compares a rank's wall clock with rank 0's, so that traces of all ranks share one time line. Cristian's algorithm:
 *  of several round trips the shortest bounds the error best. */
import type { Clock } from '../../base/clock.ts';
import type { World } from './world.ts';
import { encodeControl } from './links/control-message.ts';

const rounds = 5;
const roundTimeoutMs = 1000;

/** Milliseconds to add to this rank's wall time; 0 on rank 0 and when rank 0 does not answer. */
export async function measureClockOffset(world: World, clock: Clock): Promise<number> {
  if (world.rank === 0) return 0;
  const link = world.link(0);
  let best = { tripMs: Infinity, offsetMs: 0 };
  for (let round = 0; round < rounds; round++) {
    const answer = await new Promise<{ sentMs: number; atMs: number } | undefined>((resolve) => {
      const timer = clock.setTimer(roundTimeoutMs, () => resolve(undefined));
      world.onPong = (rank, sentMs, atMs) => {
        if (rank !== 0) return;
        timer.cancel();
        resolve({ sentMs, atMs });
      };
      link.post(encodeControl({ type: 'ping', sentMs: clock.wallNow() }));
    });
    if (!answer) break;
    const nowMs = clock.wallNow();
    const tripMs = nowMs - answer.sentMs;
    if (tripMs < best.tripMs) best = { tripMs, offsetMs: answer.atMs - (answer.sentMs + nowMs) / 2 };
  }
  world.onPong = undefined;
  return best.offsetMs;
}
