/** What the comm thread remembers and draws of its operations: the flight recorder (always on, for the question after a
 *  failure) and the trace (when asked for). */
import type { ShoalError } from '../base/errors.ts';
import type { FlightRecorder, RecordId } from '../trace/flight-recorder.ts';
import type { LaneId, NameId, TraceRecorder } from '../trace/recorder.ts';
import type { GroupSpec } from './group-spec.ts';
import type { CallAlone } from './call-history.ts';
import type { CollectiveCall } from './contract.ts';

/** An operation of the comm thread: its own, or one of the lane that the main thread left to it. */
export interface RecordedOperation {
  readonly call: CollectiveCall;
  readonly sequence: number;
  readonly timeoutMs: number;
  readonly submittedMs: number;
  /** Absent for operations of the lane. */
  readonly plan?: { readonly plan: { readonly algorithm: string } };
}

interface Logged {
  readonly group: GroupSpec;
  readonly record: RecordId;
  startedMs: number;
}

export class OperationLog {
  readonly flight: FlightRecorder;
  readonly trace: TraceRecorder;
  readonly #operations = new Map<RecordedOperation, Logged>();
  readonly #names = new Map<string, NameId>();
  readonly #lanes = new Map<string, LaneId>();

  constructor(flight: FlightRecorder, trace: TraceRecorder) {
    this.flight = flight;
    this.trace = trace;
  }

  addGroup(group: GroupSpec): void {
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
    this.#operations.set(operation, { group, record, startedMs: 0 });
  }

  started(group: GroupSpec, operation: RecordedOperation): void {
    const logged = this.#operations.get(operation);
    if (!logged) return;
    this.flight.start(logged.record);
    if (!this.trace.enabled) return;
    logged.startedMs = this.trace.now();
    // The wait for the others is drawn apart from the work, so that a straggler shows as somebody else's wait.
    const waited = this.#name(`${operation.call.kind} wait`, 'bytes');
    this.trace.complete(waited, operation.submittedMs, this.#lane(`${group.name} waits`), operation.call.count);
  }

  finished(group: GroupSpec, operation: RecordedOperation, error: ShoalError | undefined): void {
    const logged = this.#operations.get(operation);
    if (!logged) return;
    this.#operations.delete(operation);
    if (error) this.flight.fail(logged.record, error.message);
    else this.flight.complete(logged.record);
    if (!this.trace.enabled || logged.startedMs === 0) return;
    const name = this.#name(`${operation.call.kind} ${operation.plan?.plan.algorithm ?? 'taken over from the main thread'}`, 'count');
    this.trace.complete(name, logged.startedMs, this.#lane(group.name), operation.call.count);
  }

  /** Calls that the main thread made by itself, without anybody here being told; the times are those of being found. Of those
   *  that are not recorded yet, the latest for which there is room without pushing out what is underway. */
  found(group: GroupSpec, calls: readonly CallAlone[]): void {
    const recorded = this.flight.sequencesOf(group.name);
    const unrecorded = calls.filter(({ sequence }) => !recorded.has(sequence));
    const underway = [...this.#operations.values()].map(({ record }) => record);
    const room = this.flight.roomAfter(Math.min(...underway));
    for (const { sequence, call, done } of unrecorded.slice(Math.max(0, unrecorded.length - room))) {
      const operation: RecordedOperation = { call, sequence, timeoutMs: 0, submittedMs: 0 };
      this.created(group, operation);
      const logged = this.#operations.get(operation);
      this.#operations.delete(operation);
      if (!logged) continue;
      this.flight.start(logged.record);
      if (done) this.flight.complete(logged.record);
    }
  }

  /** What runs in the group ends with `error`: said before the operations are told, so that a dump written now shows it. */
  groupFailed(group: GroupSpec, error: ShoalError): void {
    for (const logged of this.#operations.values()) if (logged.group === group) this.flight.fail(logged.record, error.message);
  }

  #name(text: string, argument: string): NameId {
    let id = this.#names.get(text);
    if (id === undefined) {
      id = this.trace.name(text, { category: 'collective', argument });
      this.#names.set(text, id);
    }
    return id;
  }

  #lane(text: string): LaneId {
    let id = this.#lanes.get(text);
    if (id === undefined) {
      id = this.trace.lane(text);
      this.#lanes.set(text, id);
    }
    return id;
  }
}
