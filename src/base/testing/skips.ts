/** Tests of a conformance suite, some of which what is tested need not pass: each with its reason, which is shown. */
import { expect, it } from 'vitest';

export interface Skip {
  readonly test: string;
  readonly reason: string;
}

export interface SkippingTests {
  test(title: string, body: () => Promise<void>): void;
  /** After the last of them: a test that every skip named one. */
  checkSkips(): void;
}

export function testsBut(skips: readonly Skip[] = [], timeoutMs?: number): SkippingTests {
  const reasons = new Map(skips.map(({ test, reason }) => [test, reason]));
  return {
    test(title, body) {
      const reason = reasons.get(title);
      reasons.delete(title);
      if (reason === undefined) it(title, body, timeoutMs);
      else it.skip(`${title} (skipped: ${reason})`, () => undefined);
    },
    checkSkips() {
      it('skips name tests that exist', () => {
        expect([...reasons.keys()]).toEqual([]);
      });
    },
  };
}
