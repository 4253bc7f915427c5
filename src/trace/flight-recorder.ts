/** The last operations of a rank, to see after a hang which rank called what, and how far that got. A bounded ring of entries
 *  that are updated in place; scheduling an operation allocates nothing but the caller's arguments. Field names and states are
 *  those of c10d's flight recorder (dump version 2.10), so that its readers' habits apply. */
import type { Clock } from '../base/clock.ts';
import { writeFileWhole } from '../base/files/write-file.ts';

export type FlightState = 'scheduled' | 'started' | 'completed';

/** Handle of a recorded operation; stays valid, and without effect, after the entry is overwritten. */
export type RecordId = number;

/** Description of an operation. */
export interface FlightOperation {
  /** Name of the process group, as given to `addGroup`. */
  readonly group: string;
  /** Position in the group's sequence of collectives, or of messages when `isP2P`. */
  readonly sequence: number;
  readonly isP2P: boolean;
  /** Name as in c10d: `shoal:all_reduce`. */
  readonly profilingName: string;
  readonly inputSizes: readonly (readonly number[])[];
  readonly inputDtypes: readonly string[];
  readonly outputSizes: readonly (readonly number[])[];
  readonly outputDtypes: readonly string[];
  readonly timeoutMs: number;
  /** `new Error().stack` at the call; parsed only when dumped. */
  readonly stack?: string;
}

export interface FlightGroup {
  readonly name: string;
  readonly description: string;
  /** Global ranks. */
  readonly ranks: readonly number[];
}

export interface FlightFrame {
  readonly name: string;
  readonly filename: string;
  readonly line: number;
}

/** One operation in a dump. Times are nanoseconds of wall time; null while the state has not been reached. */
export interface FlightEntry {
  readonly record_id: number;
  readonly pg_id: number;
  readonly process_group: readonly [name: string, description: string];
  readonly collective_seq_id: number;
  readonly p2p_seq_id: number;
  readonly op_id: number;
  readonly profiling_name: string;
  readonly time_created_ns: number;
  readonly duration_ms: number | null;
  readonly input_sizes: readonly (readonly number[])[];
  readonly input_dtypes: readonly string[];
  readonly output_sizes: readonly (readonly number[])[];
  readonly output_dtypes: readonly string[];
  readonly state: FlightState;
  readonly time_discovered_started_ns: number | null;
  readonly time_discovered_completed_ns: number | null;
  /** True once nothing more will happen to it: completed, or failed. */
  readonly retired: boolean;
  readonly timeout_ms: number;
  readonly is_p2p: boolean;
  readonly thread_id: string;
  readonly thread_name: string;
  readonly frames: readonly FlightFrame[];
  /** The error that the operation ended with; c10d has no such field. */
  readonly error: string | null;
}

export interface FlightStatus {
  readonly last_enqueued_collective: number;
  readonly last_started_collective: number;
  readonly last_completed_collective: number;
}

/** Everything the recorder knows, oldest entry first; plain data. */
export interface FlightDump {
  readonly version: '2.10';
  readonly comm_lib_version: string;
  readonly rank: number;
  readonly pg_config: Readonly<Record<string, { readonly name: string; readonly desc: string; readonly ranks: string }>>;
  readonly pg_status: Readonly<Record<string, FlightStatus>>;
  readonly entries: readonly FlightEntry[];
}

export interface FlightRecorderOptions {
  /** Global rank. */
  readonly rank: number;
  readonly clock: Clock;
  /** Entries kept; 0 records nothing. */
  readonly size: number;
  /** Name of the thread that runs the operations. */
  readonly thread: string;
  /** Version of the package, for the dump. */
  readonly libraryVersion: string;
}

interface Slot {
  recordId: RecordId;
  operation: FlightOperation;
  state: FlightState;
  createdMs: number;
  startedMs: number;
  completedMs: number;
  retired: boolean;
  error: string | null;
}

interface GroupState {
  readonly id: number;
  readonly group: FlightGroup;
  enqueued: number;
  started: number;
  completed: number;
}

const never = -1;

export class FlightRecorder {
  readonly #options: FlightRecorderOptions;
  readonly #slots: Slot[] = [];
  readonly #groups = new Map<string, GroupState>();
  #nextRecord: RecordId = 0;
  #nextGroup = 0;

  constructor(options: FlightRecorderOptions) {
    this.#options = options;
  }

  /** The time on the recorder's clock. */
  now(): number {
    return this.#options.clock.now();
  }

  /** Makes a group known. Its operations may be scheduled from now on. */
  addGroup(group: FlightGroup): void {
    this.#groups.set(group.name, { id: this.#nextGroup++, group, enqueued: never, started: never, completed: never });
  }

  /** Forgets a destroyed group's status, so that the recorder does not grow; its entries stay until overwritten. */
  removeGroup(name: string): void {
    this.#groups.delete(name);
  }

  /** Number of operations that can be scheduled until the entry of this one is overwritten. Infinity asks for all that fit. */
  roomAfter(recordId: RecordId): number {
    const { size } = this.#options;
    return Math.min(size, Math.max(0, size - (this.#nextRecord - recordId)));
  }

  /** Sequence numbers of the group's collectives that have an entry. */
  sequencesOf(group: string): ReadonlySet<number> {
    const ofGroup = this.#slots.filter(({ operation }) => operation.group === group && !operation.isP2P);
    return new Set(ofGroup.map(({ operation }) => operation.sequence));
  }

  /** Records that the operation was called. */
  schedule(operation: FlightOperation): RecordId {
    const recordId = this.#nextRecord++;
    const { size, clock } = this.#options;
    if (size === 0) return recordId;
    const createdMs = clock.wallNow();
    const slot = this.#slots[recordId % size];
    if (slot === undefined) {
      this.#slots.push({
        recordId,
        operation,
        state: 'scheduled',
        createdMs,
        startedMs: never,
        completedMs: never,
        retired: false,
        error: null,
      });
    } else {
      slot.recordId = recordId;
      slot.operation = operation;
      slot.state = 'scheduled';
      slot.createdMs = createdMs;
      slot.startedMs = never;
      slot.completedMs = never;
      slot.retired = false;
      slot.error = null;
    }
    const group = this.#groups.get(operation.group);
    if (group !== undefined && !operation.isP2P) group.enqueued = Math.max(group.enqueued, operation.sequence);
    return recordId;
  }

  /** Records that every rank's call was seen and data moves. */
  start(recordId: RecordId): void {
    const slot = this.#slotOf(recordId);
    if (slot === undefined || slot.retired) return;
    slot.state = 'started';
    slot.startedMs = this.#options.clock.wallNow();
    const group = this.#groups.get(slot.operation.group);
    if (group !== undefined && !slot.operation.isP2P) group.started = Math.max(group.started, slot.operation.sequence);
  }

  /** Records that the operation succeeded. */
  complete(recordId: RecordId): void {
    const slot = this.#slotOf(recordId);
    if (slot === undefined || slot.retired) return;
    slot.state = 'completed';
    slot.completedMs = this.#options.clock.wallNow();
    slot.retired = true;
    const group = this.#groups.get(slot.operation.group);
    if (group !== undefined && !slot.operation.isP2P) group.completed = Math.max(group.completed, slot.operation.sequence);
  }

  /** Records that the operation failed; its state stays the one it had reached. */
  fail(recordId: RecordId, error: string): void {
    const slot = this.#slotOf(recordId);
    if (slot === undefined || slot.retired) return;
    slot.retired = true;
    slot.error = error;
  }

  dump(): FlightDump {
    const { rank, libraryVersion } = this.#options;
    const groups = [...this.#groups.values()];
    return {
      version: '2.10',
      comm_lib_version: libraryVersion,
      rank,
      pg_config: Object.fromEntries(
        groups.map(({ id, group }) => [id, { name: group.name, desc: group.description, ranks: `[${group.ranks.join(', ')}]` }]),
      ),
      pg_status: Object.fromEntries(
        groups.map(({ id, enqueued, started, completed }) => [
          id,
          { last_enqueued_collective: enqueued, last_started_collective: started, last_completed_collective: completed },
        ]),
      ),
      entries: this.#slots.toSorted((a, b) => a.recordId - b.recordId).map((slot) => this.#entryOf(slot)),
    };
  }

  #slotOf(recordId: RecordId): Slot | undefined {
    if (this.#options.size === 0) return undefined;
    const slot = this.#slots[recordId % this.#options.size];
    return slot?.recordId === recordId ? slot : undefined;
  }

  #entryOf(slot: Slot): FlightEntry {
    const { operation, startedMs, completedMs } = slot;
    const group = this.#groups.get(operation.group);
    return {
      record_id: slot.recordId,
      pg_id: group?.id ?? never,
      process_group: [operation.group, group?.group.description ?? ''],
      collective_seq_id: operation.isP2P ? 0 : operation.sequence,
      p2p_seq_id: operation.isP2P ? operation.sequence : 0,
      op_id: slot.recordId,
      profiling_name: operation.profilingName,
      time_created_ns: nanoseconds(slot.createdMs),
      duration_ms: startedMs === never || completedMs === never ? null : completedMs - startedMs,
      input_sizes: operation.inputSizes,
      input_dtypes: operation.inputDtypes,
      output_sizes: operation.outputSizes,
      output_dtypes: operation.outputDtypes,
      state: slot.state,
      time_discovered_started_ns: startedMs === never ? null : nanoseconds(startedMs),
      time_discovered_completed_ns: completedMs === never ? null : nanoseconds(completedMs),
      retired: slot.retired,
      timeout_ms: operation.timeoutMs,
      is_p2p: operation.isP2P,
      thread_id: String(process.pid),
      thread_name: this.#options.thread,
      frames: operation.stack === undefined ? [] : parseFrames(operation.stack),
      error: slot.error,
    };
  }
}

/** Writes `<folder>/flight-rank-<rank>.json`, whole or not at all, and returns its path.
 *  @throws ShoalError `system` when the folder cannot be written. */
export function writeFlightDump(folder: string, dump: FlightDump): string {
  return writeFileWhole(folder, `flight-rank-${dump.rank}.json`, [`${JSON.stringify(dump, null, 2)}\n`]);
}

/** The frames of `new Error().stack`, innermost first; lines that are not frames are left out. */
export function parseFrames(stack: string): FlightFrame[] {
  const frames: FlightFrame[] = [];
  for (const text of stack.split('\n')) {
    const match = /^\s*at (?:(.*) \()?(.+?):(\d+):\d+\)?$/.exec(text);
    if (match !== null) frames.push({ name: match[1] ?? '<anonymous>', filename: match[2], line: Number(match[3]) });
  }
  return frames;
}

/** Nanoseconds, exact to 256 ns, the precision of a double at this magnitude. */
function nanoseconds(wallMs: number): number {
  return Math.round(wallMs * 1e6);
}
