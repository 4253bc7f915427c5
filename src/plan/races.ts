/** Happens-before between accesses. An access A is before an access B when B's thread knew, before B began, that one of A's ends
 *  had ended. Two accesses to the same element of which one writes must be ordered one way or the other.
 *
 *      rank 0:  put ───────────────────▶ flush          the put reads its source in this span,
 *      rank 1:        ··· lands ··· wait                and writes its target in this one
 *
 *  Also here: an operation's duty to its caller. When a rank's program ends, no rank touches its buffers any more. Its mailbox is
 *  not the caller's: the runtime keeps it until all programs have ended. That every rank has begun needs no proof: no channel
 *  starts before all ranks have announced the call. */
import { groupBy } from '../base/collections/lists.ts';
import type { Location } from './ir.ts';
import { spanText } from './structure.ts';
import { nameOf, type Access, type Event, type Execution } from './symbolic.ts';

export function raceProblems(execution: Execution): string[] {
  return [...conflicts(execution), ...lateTouches(execution)];
}

function conflicts(execution: Execution): string[] {
  const problems: string[] = [];
  for (const accesses of byBuffer(execution.accesses)) {
    if (!accesses.some(({ writes }) => writes)) continue;
    accesses.sort((a, b) => a.offset - b.offset);
    let open: Access[] = [];
    for (const access of accesses) {
      open = open.filter(({ offset, count }) => offset + count > access.offset);
      for (const other of open) {
        if (!access.writes && !other.writes) continue;
        if (isSame(access.event, other.event) || isBefore(access, other.event) || isBefore(other, access.event)) continue;
        problems.push(`race: ${describe(other)} and ${describe(access)} are not ordered`);
      }
      open.push(access);
    }
  }
  return problems;
}

function lateTouches(execution: Execution): string[] {
  const late = execution.accesses.filter(
    ({ rank, buffer, ends }) => buffer !== 'mailbox' && !ends.some((end) => execution.knownAtEnd[rank][end.thread] > end.step),
  );
  return late.map((access) => `${describe(access)}, possibly after rank ${access.rank}'s program has ended`);
}

function byBuffer(accesses: readonly Access[]): Access[][] {
  return [...groupBy(accesses, ({ buffer, rank }) => `${buffer}${rank}`).values()];
}

function isBefore(access: Access, event: Event): boolean {
  return access.ends.some((end) => (end.thread === event.thread.index ? end.step < event.step : event.known[end.thread] > end.step));
}

function isSame(a: Event, b: Event): boolean {
  return a.thread === b.thread && a.step === b.step;
}

function describe({ event, rank, writes, buffer, offset, count }: Access): string {
  const { thread, step } = event;
  const location: Location = { buffer, offset, count, rank };
  return `${nameOf(thread)} step ${step} (${thread.steps[step].kind}) ${writes ? 'writes' : 'reads'} ${spanText(location)}`;
}
