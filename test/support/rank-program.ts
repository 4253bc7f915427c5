/** What programs of test/fixtures say and are told, and how they wait. */
import { isShoalError, type ProcessGroup } from 'shoal';

/** A line to the test. */
export function say(event: Record<string, unknown>): void {
  console.log(JSON.stringify(event));
}

/** The test says when to go on. A program that has been told destroys `process.stdin` at its end. */
export function told(): Promise<void> {
  return new Promise((resolve) => {
    process.stdin.resume().once('data', () => {
      process.stdin.pause();
      resolve();
    });
  });
}

/** Says how it ended. */
export async function report(what: string, run: () => PromiseLike<unknown>, more: Record<string, unknown> = {}): Promise<void> {
  const startMs = performance.now();
  try {
    await run();
    say({ ...more, what, ok: true });
  } catch (error) {
    if (!isShoalError(error)) throw error;
    say({ ...more, what, ok: false, code: error.code, message: error.message, peer: error.peer, ms: performance.now() - startMs });
  }
}

/** All that this rank has called is known to its comm thread: commands arrive there in order, and messages are commands. */
export async function handedOver(group: ProcessGroup, peer: number): Promise<void> {
  await Promise.all([group.send(Int32Array.of(1), peer, { tag: 7 }), group.recv(new Int32Array(1), peer, { tag: 7 })]);
}
