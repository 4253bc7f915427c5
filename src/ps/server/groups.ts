/** State of several server groups as one. Worker 0 talks to group 0 only; server s of group 0 speaks for the servers s of all.
 *
 *      save   group 0 ── gather ───▶ others       they exchange their workers' pushes
 *                     ◀── gathered ──             and report the number of updates
 *             group 0 has, or asks the master for, a value with so many: it is saved
 *      load   group 0 ── assign ───▶ others       values, optimiser and versions, as they were in the files
 *                     ◀── assigned ──             they are in place, and durable where servers save checkpoints
 *
 *  Both requests are repeated when the other side may have lost them; a server that has done its part replies at once. */
import { ShoalError } from '../../base/errors.ts';
import type { ValueOf } from '../../base/schema.ts';
import type { Msg } from '../../messaging/msg.ts';
import { cutsOf } from './state/cuts.ts';
import type { ServerState } from './state/server-state.ts';
import { encodeControl, Fields, packError, readControl, unpackError } from '../protocol/wire-control.ts';
import { KVMessage, malformed } from '../protocol/wire.ts';

/** Values of one message. */
const chunkBytes = 32 * 2 ** 20;

type Finish = (error: ShoalError | undefined) => void;

/** A save at group 0 that waits for the others. */
interface Gathering {
  /** Updates of workers by slot, of each group that has answered. */
  readonly counts: Map<number, readonly number[]>;
  /** The master has been asked, after all others had sent theirs. A master that was started again tells when it has more. */
  caughtUp: boolean;
  readonly finish: Finish;
}

/** The state that group 0 has loaded, until all have it. */
interface Assignment {
  readonly generation: number;
  /** Frames of the messages that say it. */
  readonly chunks: readonly Uint8Array[][];
  readonly missing: Set<number>;
  readonly finish: Finish;
}

/** The fields and values of one `assign`. */
type Chunk = ValueOf<typeof Fields.assign> & { readonly values: Uint8Array };

export class ServerGroups {
  readonly #state: ServerState;
  readonly #others: readonly number[];
  /** Saves by their number. */
  readonly #gatherings = new Map<number, Gathering>();
  #number = 0;
  #assignment: Assignment | undefined;
  /** Questions of group 0 at another group, which wait for what workers repeat, and then for the master's answers. */
  #asked: { readonly question: ValueOf<typeof Fields.gather>; counts: readonly number[] | undefined }[] = [];
  /** The parts of a loaded state that have come, in order. */
  #chunks: Chunk[] = [];

  constructor(state: ServerState) {
    this.#state = state;
    const { group, topology } = state.options;
    this.#others = Array.from({ length: topology.serverGroups }, (_, other) => other).filter((other) => other !== group);
  }

  // ── group 0 ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Calls `finish` when this server's values contain all updates that all groups have now. */
  gather(finish: Finish): void {
    const number = ++this.#number;
    this.#gatherings.set(number, { counts: new Map(), caughtUp: false, finish });
    for (const group of this.#others) this.#ask(number, group);
    this.progress();
  }

  /** Gives what was loaded, and is in place here, to all groups. The request of worker 0 is its generation. */
  assign(generation: number, finish: Finish): void {
    const { sync } = this.#state;
    const aborted = new ShoalError('aborted', 'other state was loaded before this one was saved');
    for (const { finish: saved } of this.#gatherings.values()) saved(aborted);
    this.#gatherings.clear();
    sync.begin(generation);
    const chunks = this.#others.length === 0 ? [] : this.#chunksOf(generation);
    this.#assignment = { generation, chunks, missing: new Set(this.#others), finish };
    for (const group of this.#others) this.#sendAssignment(group);
    this.progress();
  }

  /** The load that is under way. */
  get assigning(): number | undefined {
    return this.#assignment?.generation;
  }

  /** Names the servers that have not answered, for an error. */
  describe(): string {
    const waiting = new Set(this.#assignment?.missing);
    for (const { counts } of this.#gatherings.values()) for (const group of this.#others) if (!counts.has(group)) waiting.add(group);
    const { server } = this.#state.options;
    if (waiting.size > 0) return [...waiting].map((group) => `server ${server} of group ${group} has not answered`).join(', ');
    return this.#gatherings.size > 0 ? 'updates of other server groups have not arrived' : '';
  }

  /** A connection with another group has been made (again), or, without a group, we have just begun to serve. */
  peerUp(group?: number): void {
    for (const other of group === undefined ? this.#others : [group]) {
      for (const [number, { counts }] of this.#gatherings) if (!counts.has(other)) this.#ask(number, other);
      if (this.#assignment?.missing.has(other) === true) this.#sendAssignment(other);
    }
  }

  /** Something may have come that is waited for: updates, answers, parameters. */
  progress(): void {
    this.#finishGatherings();
    if (this.#assignment?.missing.size === 0) this.#endAssignment(undefined);
    // Workers repeat first what they pushed before.
    if (this.#state.repeats) return;
    this.#acceptChunks();
    this.#answerQuestions();
  }

  receiveGathered(group: number, msg: Msg): void {
    const { number, incarnation, counts } = readControl(msg.frames[0], Fields.gathered);
    // An earlier process, or its standby, has asked: this one asks again.
    if (incarnation !== this.#state.options.incarnation) return;
    this.#gatherings.get(number)?.counts.set(group, counts);
    this.progress();
  }

  receiveAssigned(group: number, msg: Msg): void {
    const { generation, error } = readControl(msg.frames[0], Fields.assigned);
    const assignment = this.#assignment;
    if (assignment === undefined || generation !== assignment.generation) return;
    if (error !== undefined) return this.#endAssignment(unpackError(error));
    assignment.missing.delete(group);
    this.progress();
  }

  #ask(number: number, group: number): void {
    this.#tell(group, KVMessage.gather, [encodeControl({ number, incarnation: this.#state.options.incarnation })]);
  }

  #finishGatherings(): void {
    const { sync, slots } = this.#state;
    for (const [number, gathering] of this.#gatherings) {
      const { counts, finish } = gathering;
      if (counts.size < this.#others.length) continue;
      if (this.#others.length > 0) {
        const all = [sync.own, ...counts.values()];
        const least = slots.version.map((_, slot) => all.reduce((sum, of) => sum + (of[slot] ?? 0), 0));
        if (least.some((version, slot) => slots.version[slot] < version)) {
          if (!gathering.caughtUp) sync.catchUp(least);
          gathering.caughtUp = true;
          continue;
        }
      }
      this.#gatherings.delete(number);
      finish(undefined);
    }
  }

  #endAssignment(error: ShoalError | undefined): void {
    const assignment = this.#assignment;
    this.#assignment = undefined;
    assignment?.finish(error);
  }

  #sendAssignment(group: number): void {
    for (const frames of this.#assignment?.chunks ?? []) this.#tell(group, KVMessage.assign, frames);
  }

  /** The present state, as `assign` says it. */
  #chunksOf(generation: number): Uint8Array[][] {
    const { slots, optimizerVersion: optimizer, optimizerSpec: spec } = this.#state;
    const bytesOf = (slot: number): number => slots.bytesOf(slot, this.#state.applier.optimizer);
    return [...cutsOf(0, slots.count, chunkBytes, bytesOf)].map((cut) => {
      const { first, to } = cut;
      const parts = Array.from({ length: to - first }, (_, k) => slots.memories(first + k)).flat();
      const counts = { versions: slots.version.slice(first, to), steps: slots.steps.slice(first, to) };
      return [encodeControl({ generation, ...cut, optimizer, spec, ...counts }), Buffer.concat(parts)];
    });
  }

  // ── other groups ───────────────────────────────────────────────────────────────────────────────────────────────

  /** @throws ShoalError `protocol`. */
  receiveGather(group: number, msg: Msg): void {
    if (group !== 0) throw new ShoalError('protocol', 'only servers of group 0 gather');
    this.#asked.push({ question: readControl(msg.frames[0], Fields.gather), counts: undefined });
    this.progress();
  }

  /** @throws ShoalError `protocol`. */
  receiveAssign(group: number, msg: Msg): void {
    if (group !== 0) throw new ShoalError('protocol', 'only servers of group 0 assign');
    const chunk = readChunk(msg);
    if (chunk.first === 0) this.#chunks = [];
    // Earlier parts have been lost with a connection: all of them come again.
    if (chunk.first !== (this.#chunks.at(-1)?.to ?? 0)) return;
    this.#chunks.push(chunk);
    this.progress();
  }

  #answerQuestions(): void {
    const { sync } = this.#state;
    this.#asked = this.#asked.filter((asked) => {
      if (asked.counts === undefined) {
        asked.counts = [...sync.own];
        sync.hurry();
      }
      const { question, counts } = asked;
      if (!sync.hasSent(counts)) return true;
      this.#tell(0, KVMessage.gathered, [encodeControl({ ...question, counts })]);
      return false;
    });
  }

  #acceptChunks(): void {
    const { sync, committedSlots } = this.#state;
    const last = this.#chunks.at(-1);
    // Parameters may be on their way.
    if (last?.last !== true || last.to > committedSlots) return;
    const chunks = this.#chunks;
    this.#chunks = [];
    const { generation } = last;
    const answer = (fields: Record<string, unknown>): void => this.#tell(0, KVMessage.assigned, [encodeControl({ generation, ...fields })]);
    const refuse = (thrown: unknown): void => answer({ error: packError(ShoalError.from(thrown)) });
    try {
      if (generation > sync.generation) this.#accept(chunks, generation);
    } catch (thrown) {
      return refuse(thrown);
    }
    this.#state.actions.durable().then(() => answer({}), refuse);
  }

  /** @throws ShoalError `protocol`; nothing has changed. */
  #accept(chunks: readonly Chunk[], generation: number): void {
    const state = this.#state;
    const { slots, sync } = state;
    const [{ spec, optimizer: version }] = chunks;
    const optimizer = spec && state.options.createOptimizer(spec);
    if (chunks.at(-1)?.to !== slots.count) throw malformed('loaded values of other slots');
    for (const { first, to, values } of chunks) {
      let bytes = 0;
      for (let slot = first; slot < to; slot++) bytes += slots.bytesOf(slot, optimizer);
      if (bytes !== values.byteLength) throw malformed(`${bytes} loaded bytes in ${values.byteLength}`);
    }
    if (spec !== undefined) state.setOptimizer(spec);
    state.optimizerVersion = version;
    for (const { first, to, values, versions, steps } of chunks) {
      let at = 0;
      for (let slot = first; slot < to; slot++) {
        slots.writable(slot, slot + 1);
        for (const memory of slots.memories(slot)) {
          memory.set(values.subarray(at, at + memory.byteLength));
          at += memory.byteLength;
        }
        slots.version[slot] = versions[slot - first];
        slots.steps[slot] = steps[slot - first];
      }
    }
    sync.begin(generation);
    state.dirty = true;
  }

  #tell(group: number, type: number, frames: Uint8Array[]): void {
    this.#state.actions.send(group, { type, frames });
  }
}

/** @throws ShoalError `protocol`. */
function readChunk(msg: Msg): Chunk {
  const fields = readControl(msg.frames[0], Fields.assign);
  const slots = fields.to - fields.first;
  if (slots < 0 || fields.versions.length !== slots || fields.steps.length !== slots) throw malformed('a part of what was loaded');
  return { ...fields, values: msg.frames[1] };
}
