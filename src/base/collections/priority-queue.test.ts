/** The heap, compared with sorting. */
import * as fc from 'fast-check';
import { expect, it } from 'vitest';
import { PriorityQueue } from './priority-queue.ts';

it('returns the smallest item first, at any time', () => {
  const steps = fc.array(fc.oneof(fc.nat(9), fc.constant('pop' as const)), { maxLength: 60 });
  fc.assert(
    fc.property(steps, (program) => {
      const queue = new PriorityQueue<{ value: number; order: number }>(
        (a, b) => a.value < b.value || (a.value === b.value && a.order < b.order),
      );
      const model: { value: number; order: number }[] = [];
      for (const [order, step] of program.entries()) {
        if (step === 'pop') {
          expect(queue.peek()).toEqual(model[0]);
          expect(queue.pop()).toEqual(model.shift());
        } else {
          queue.push({ value: step, order });
          model.push({ value: step, order });
          model.sort((a, b) => a.value - b.value || a.order - b.order);
        }
        expect(queue.length).toBe(model.length);
      }
    }),
  );
});
