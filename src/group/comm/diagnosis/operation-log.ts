/** The comm thread's records of its operations: the flight recorder (where a failure may be written down) and the
 *  trace (on request). */
import type { ShoalError } from '../../../base/errors.ts';
import type { CallCounters } from '../../../metrics/call-counters.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import type { FlightRecorder, RecordId } from '../../../trace/flight-recorder.ts';
import type { TraceRecorder } from '../../../trace/recorder.ts';
import type { Movement } from '../../../trace/traffic.ts';
import type { CallAlone } from './call-history.ts';
import { messageName, waitName, workName, type CallSpan, type MessageSpan } from '../../../call/collective-spans.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';

/** An operation of the comm thread: its own, or one that the main thread left to it. */
export interface RecordedOperation extends CallSpan {
  readonly sequence: number;
  readonly timeoutMs: number;
  readonly submittedMs: number;
  /** The last rank, of the group, that was seen not to have called; undefined: none was. */
  readonly waitedFor: number | undefined;
  /** The bytes that it moves between ranks of the group, as far as that is known. */
  readonly movements: readonly Movement[];
}

interface Logged {
  readonly group: GroupSpec;
  readonly record: RecordId;
  /** Undefined: not all ranks have called. */
  startedMs: number | undefined;
}

export class OperationLog {
  readonly flight: FlightRecorder;
  readonly trace: TraceRecorder;
  readonly counters: CallCounters | undefined;
  readonly #operations = new Map<RecordedOperation, Logged>();

  /** @param counters undefined: calls are not counted. */
  constructor(flight: FlightRecorder, trace: TraceRecorder, counters?: CallCounters) {
    this.flight = flight;
    this.counters = counters;
    this.trace = trace;
  }

  addGroup(group: GroupSpec): void {
    this.counters?.clear(group.id);
    this.flight.addGroup({ name: group.name, description: group.name, ranks: group.globalRanks });
  }

  removeGroup(group: GroupSpec): void {
    this.flight.removeGroup(group.name);
  }

  created(group: GroupSpec, operation: RecordedOperation): void {
    const { call, sequence, timeoutMs } = operation;
    const record = this.flight.schedule({
      group: group.name,
      sequence,
      isP2P: false,
      profilingName: `shoal:${call.kind.replaceAll('-', '_')}`,
      inputSizes: [[call.count]],
      inputDtypes: [call.dtype],
      outputSizes: [[call.count]],
      outputDtypes: [call.dtype],
      timeoutMs,
      stack: call.site === undefined ? undefined : `Error\n    at ${call.site}:1`,
    });
    this.#operations.set(operation, { group, record, startedMs: undefined });
  }

  /** All ranks have called it. */
  started(group: GroupSpec, operation: RecordedOperation): void {
    const logged = this.#operations.get(operation);
    if (!logged) return;
    this.flight.start(logged.record);
    const { trace } = this;
    if (!trace.enabled) return;
    this.#drawWait(group, operation);
    logged.startedMs = trace.now();
  }

  /** The wait for the others is drawn apart from the work, so that a straggler shows as somebody else's wait. */
  #drawWait(group: GroupSpec, operation: RecordedOperation): void {
    const { submittedMs, sequence, waitedFor } = operation;
    const name = waitName(this.trace, group, operation);
    const last = waitedFor === undefined ? Number.NaN : group.globalRanks[waitedFor];
    this.trace.complete(name, submittedMs, this.trace.lane(`${group.name} waits`), sequence, last);
  }

  finished(group: GroupSpec, operation: RecordedOperation, error: ShoalError | undefined): void {
    const logged = this.#operations.get(operation);
    if (!logged) return;
    this.#operations.delete(operation);
    if (error) this.flight.fail(logged.record, error.message);
    else this.flight.complete(logged.record);
    if (!error) this.#count(group, operation);
    if (!this.trace.enabled) return;
    // The calling thread has drawn itself what it took back.
    if (logged.startedMs === undefined) {
      if (error) this.#drawWait(group, operation);
      return;
    }
    this.trace.complete(workName(this.trace, group, operation), logged.startedMs, this.trace.lane(group.name), operation.sequence);
    if (!error) this.trace.moved(group.globalRanks, operation.movements);
  }

  /** Calls of fast paths have been counted when they were made. */
  #count({ id }: GroupSpec, { call, path, submittedMs }: RecordedOperation): void {
    if (!this.counters) return;
    const row = this.counters.row(id, call.kind, path);
    if (path === 'comm thread') this.counters.count(row, call.count * dtypeInfo(call.dtype).bytes);
    this.counters.time(row, (this.flight.now() - submittedMs) / 1000);
  }

  /** A message that was asked for at `startMs` has been sent or received, or has failed. Its sender counts its bytes. */
  messageEnded(
    group: GroupSpec,
    message: MessageSpan,
    { startMs, error }: { readonly startMs: number; readonly error: ShoalError | undefined },
  ): void {
    const { trace, counters } = this;
    if (!error) counters?.count(counters.row(group.id, message.direction, 'comm thread'), message.count * dtypeInfo(message.dtype).bytes);
    if (!trace.enabled) return;
    trace.complete(
      messageName(trace, group, message),
      startMs,
      this.trace.lane(`${group.name} messages`),
      message.peer === undefined ? Number.NaN : group.globalRanks[message.peer],
    );
    if (error || message.direction !== 'send' || message.peer === undefined) return;
    const bytes = message.count * dtypeInfo(message.dtype).bytes;
    trace.moved(group.globalRanks, [{ from: group.rank, to: message.peer, bytes, transfers: 1 }]);
  }

  /** Calls that the main thread made by itself, without anybody here being told; the times are those of being found. Of those
   *  that are not recorded yet, the latest for which there is room without pushing out what is underway. */
  found(group: GroupSpec, calls: () => readonly CallAlone[]): void {
    const underway = [...this.#operations.values()].map(({ record }) => record);
    const room = this.flight.roomAfter(Math.min(...underway));
    const recorded = this.flight.sequencesOf(group.name);
    const unrecorded = (room === 0 ? [] : calls()).filter(({ sequence }) => !recorded.has(sequence));
    for (const { sequence, call, done } of unrecorded.slice(-room)) {
      const operation: RecordedOperation = {
        call,
        sequence,
        timeoutMs: 0,
        submittedMs: 0,
        path: 'host path',
        algorithm: '',
        waitedFor: undefined,
        movements: [],
      };
      this.created(group, operation);
      const logged = this.#operations.get(operation);
      this.#operations.delete(operation);
      if (!logged) continue;
      this.flight.start(logged.record);
      if (done) this.flight.complete(logged.record);
    }
  }

  /** Notes that all calls of the group end with `error`: said before the operations are told, so that a dump written now shows it. */
  groupFailed(group: GroupSpec, error: ShoalError): void {
    for (const logged of this.#operations.values()) if (logged.group === group) this.flight.fail(logged.record, error.message);
  }
}
