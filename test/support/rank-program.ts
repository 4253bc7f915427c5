/** Functions of programs of test/fixtures: output for the test, orders from it, and waits. */
import { isShoalError, type ProcessGroup } from 'shoal';

/** Prints a line for the test. */
export function say(event: Record<string, unknown>): void {
  console.log(JSON.stringify(event));
}

/** Waits until the test says to go on. A program that has been told destroys `process.stdin` at its end. */
export function told(): Promise<void> {
  return new Promise((resolve) => {
    process.stdin.resume().once('data', () => {
      process.stdin.pause();
      resolve();
    });
  });
}

/** Runs something and prints its outcome. */
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

/** Resolves when all calls of this rank are known to its comm thread: commands arrive there in order, and messages are commands. */
export async function handedOver(group: ProcessGroup, peer: number): Promise<void> {
  await Promise.all([group.send(Int32Array.of(1), peer, { tag: 7 }), group.recv(new Int32Array(1), peer, { tag: 7 })]);
}
