/** Tests of a conformance suite, some of which a tested implementation need not pass: each skip has its reason, which is shown. */
import { expect, it } from 'vitest';

export interface Skip {
  readonly test: string;
  readonly reason: string;
}

export interface SkippingTests {
  test(title: string, body: () => Promise<void>): void;
  /** Called after the last test: adds a test that every skip named one. */
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
