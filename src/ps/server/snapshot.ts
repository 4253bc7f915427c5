/** A server's state as tensors and text, and back. Tensors:
 *
 *    parameter/<key>        values of a whole parameter; `parameter/<key>@<first element>` of a slice
 *    state/<name>/<key>…    the optimiser's
 *    first/…, base/…, included/<group>/…, sent    exchanges between server groups (group-sync.ts)
 *    version, steps, settled/<worker group>     by slot
 *
 *  It excludes pushes that are not settled: clients repeat them. */
import { ShoalError, type ErrorCode } from '../../base/errors.ts';
import { anyList, anything, count, flag, integer, object, optional, type Shape } from '../../base/schema.ts';
import { dtypeInfo, type DType } from '../../memory/dtype.ts';
import type { Address } from '../../messaging/address.ts';
import type { Snapshot, SnapshotTensor } from '../../checkpoint/snapshot.ts';
import type { Optimizer } from '../optimizers/optimizer.ts';
import type { ServerSession } from './state/client-session.ts';
import type { Exchange } from './state/group-sync.ts';
import { packBatch, unpackBatch, type ParameterDirectory } from '../protocol/parameter-directory.ts';
import type { ServerState } from './state/server-state.ts';
import { encodeControl, packedSpec, readControl, type ControlFields } from '../protocol/wire-control.ts';
import { stateNames, stateType } from '../values/mixed-precision.ts';

const format = 'shoal-kvstore-1';
const savedOptimizer = object({ optimizer: optional(packedSpec) });
/** The part of a saved state that says how it is cut and dealt. */
export const savedPlacement = object({
  topology: object({ serversPerGroup: integer({ min: 1 }) }),
  server: count,
  batches: anyList,
  optimizer: optional(packedSpec),
});
const savedState = object({
  ...{
    topology: anything,
    group: count,
    server: count,
    lineage: count,
    batches: anyList,
    committed: count,
    optimizer: optional(packedSpec),
  },
  ...{ optimizerVersion: count, generation: count, repeats: flag, sessions: anyList, exchange: anything },
});

/** A copy: the state may go on changing. Without `exchanges`, what only this server can use is left out. */
export function takeSnapshot(state: ServerState, { exchanges }: { readonly exchanges: boolean } = { exchanges: true }): Snapshot {
  const { directory, slots, sync, options, applier } = state;
  const tensors = new Map<string, SnapshotTensor>();
  const add = (prefix: string, slot: number, tensor: Pick<SnapshotTensor, 'dtype' | 'data'>): void => {
    const { shape, pieces } = slots.parameterOf(slot);
    const count = directory.slots(options.server)[slot].elements;
    tensors.set(`${prefix}/${slotName(directory, options.server, slot)}`, { ...tensor, shape: pieces.length === 1 ? shape : [count] });
  };
  const addSlabs = (prefix: string, slabs: readonly Uint8Array[]): void => {
    const copies = slabs.map((bytes) => Uint8Array.from(bytes));
    for (let slot = 0; slot < slots.count; slot++) {
      const copy = copies[slots.slab[slot]];
      if (copy !== undefined) add(prefix, slot, { dtype: slots.dtype(slot), data: copy.subarray(slots.start[slot], slots.end[slot]) });
    }
  };
  for (let slot = 0; slot < slots.count; slot++) {
    const memories = slots.memories(slot);
    for (const [k, { prefix, dtype }] of tensorsOf(applier.optimizer, slots.dtype(slot)).entries())
      add(prefix, slot, { dtype, data: memories[k].slice() });
  }
  tensors.set('version', numbers(slots.version));
  tensors.set('steps', numbers(slots.steps));
  for (const [group, { settled }] of state.transfers.groups) tensors.set(`settled/${group}`, numbers(settled));
  const exchange = exchanges ? sync.exchange : undefined;
  if (exchanges) {
    addSlabs('base', sync.base);
    addSlabs('first', sync.first);
    for (const [group, { values, counts }] of sync.included) {
      addSlabs(`included/${group}`, values);
      tensors.set(`included/${group}`, numbers(counts));
    }
    tensors.set('own', numbers(sync.own));
  }
  if (exchange !== undefined) tensors.set('sent', { dtype: 'uint8', shape: [exchange.own.byteLength], data: exchange.own });
  const fields = {
    topology: options.topology,
    group: options.group,
    server: options.server,
    lineage: state.lineage,
    batches: packBatches(directory),
    committed: state.committed,
    optimizer: state.optimizerSpec,
    optimizerVersion: state.optimizerVersion,
    generation: sync.generation,
    repeats: state.repeats,
    sessions: [...state.sessions.values()].map((session) => [
      String(session.address),
      session.rounds.group,
      session.member.firstWorker,
      session.member.workers,
      // After a restart a session has not heard of its early requests again; they are in this state all the same.
      Math.max(session.durable, session.settledUpTo()),
      session.lastConfiguration,
      session.durable,
      Number(session.heard),
      session.lastRepeated,
      [...session.member.missed],
      ...(state.options.elastic === true ? [presenceOf(session)] : []),
    ]),
    exchange: exchange && { number: exchange.number, incarnation: exchange.incarnation, slots: exchange.slots, counts: exchange.counts },
  };
  return { tensors, metadata: metadataOf(fields) };
}

/** The last request of each client that is in the snapshot, with all before it. */
export function durableRequests(snapshot: Snapshot): ReadonlyMap<Address, number> {
  const { sessions } = fieldsOf(snapshot, savedState);
  return new Map(sessions.map((entry) => readSession(entry)).map(({ address, settled }) => [address, settled]));
}

/** Fills a state that knows nothing yet. With `exchange: 'keep'`, what was in flight between server groups still is.
 *  @throws ShoalError `mismatch` for another server's snapshot, `protocol` for a damaged one. */
export function restoreSnapshot(state: ServerState, snapshot: Snapshot, how: { readonly exchange: 'keep' | 'drop' }): void {
  const saved = fieldsOf(snapshot, savedState);
  const { batches, committed } = saved;
  const { options, slots, sync } = state;
  for (const name of ['group', 'server', 'topology'] as const) {
    const [there, here] = [JSON.stringify(saved[name]), JSON.stringify(options[name])];
    if (there !== here)
      throw new ShoalError('mismatch', `the snapshot is of ${name} ${there}, this server is of ${here}; use another folder`);
  }
  if (saved.optimizer !== undefined) state.setOptimizer(saved.optimizer);
  state.optimizerVersion = saved.optimizerVersion;
  for (const [k, batch] of batches.entries()) {
    state.declare(unpackBatch(batch));
    if (k < committed) state.commit();
  }
  if (state.committed !== committed) throw damaged('its batches');
  readMemories(state, snapshot, state.applier.optimizer);
  readSlabTensors(state, snapshot, 'base', sync.base);
  readSlabTensors(state, snapshot, 'first', sync.first);
  readNumbers(snapshot, 'version', slots.version);
  readNumbers(snapshot, 'steps', slots.steps);
  readNumbers(snapshot, 'own', sync.own);
  for (const [group, rounds] of state.transfers.groups) readNumbers(snapshot, `settled/${group}`, rounds.settled);
  for (const group of Array.from({ length: options.topology.serverGroups }, (_, k) => k)) {
    const tensor = snapshot.tensors.get(`included/${group}`);
    if (tensor === undefined) continue;
    const counts = countsOf(snapshot, `included/${group}`, slots.count);
    const values = slots.slabs.map(({ memory }) => new Uint8Array(memory.bytes.byteLength));
    readSlabTensors(state, snapshot, `included/${group}`, values);
    sync.included.set(group, { values, counts });
  }
  const presences = new Map<ServerSession, Presence>();
  for (const entry of saved.sessions) {
    const { address, group, firstWorker, workers, settled, durable, configuration, heard, lastRepeated, missed, presence } =
      readSession(entry);
    const session = state.join(address, group, firstWorker, workers, presence?.joins);
    if (presence !== undefined) presences.set(session, presence);
    for (const [slot, round] of missed) session.member.missed.set(slot, round);
    session.lastRequest = settled;
    // A standby has everything, and on disk is what its primary has saved there.
    session.durable = how.exchange === 'keep' ? durable : settled;
    session.lastConfiguration = configuration;
    if (how.exchange === 'keep') Object.assign(session, { heard, lastRepeated });
  }
  sync.generation = saved.generation;
  if (how.exchange === 'keep') {
    state.lineage = saved.lineage;
    state.repeats = saved.repeats;
  }
  const sent = snapshot.tensors.get('sent');
  if (how.exchange === 'keep' && sent !== undefined) {
    sync.restart({ ...(saved.exchange as Omit<Exchange, 'own'>), own: sent.data });
  } else {
    sync.restart(undefined);
  }
  // A session's rounds begin where the snapshot ends.
  for (const { member, rounds } of state.sessions.values())
    for (const [slot, round] of rounds.settled.entries()) member.received[slot] = round;
  for (const [session, presence] of presences) restorePresence(state, session, presence);
  state.dirty = false;
}

/** Replaces values, optimiser and versions of the present parameters; rounds of the present workers go on. The snapshot is
 *  cut as the state is: see server/reslice.ts. One without an optimiser leaves the present one, which begins anew.
 *  @throws ShoalError `protocol` for a damaged one; nothing has changed. */
export function replaceValues(state: ServerState, snapshot: Snapshot): void {
  const { optimizer: spec } = fieldsOf(snapshot, savedOptimizer);
  const { slots, directory, options } = state;
  const optimizer = spec && options.createOptimizer(spec);
  for (let slot = 0; slot < slots.count; slot++) {
    const { elements } = directory.slots(options.server)[slot];
    for (const { prefix, dtype } of tensorsOf(optimizer, slots.dtype(slot))) {
      const tensor = snapshot.tensors.get(`${prefix}/${slotName(directory, options.server, slot)}`);
      const sound = tensor?.dtype === dtype && tensor.data.byteLength === elements * dtypeInfo(dtype).bytes;
      if (!sound) throw damaged(`${prefix} of ${slots.describe(slot)}`);
    }
  }
  const [versions, steps] = ['version', 'steps'].map((name) => countsOf(snapshot, name, slots.count));
  if (spec !== undefined) state.setOptimizer(spec);
  else slots.resetStates(state.applier.optimizer);
  readMemories(state, snapshot, optimizer);
  for (let slot = 0; slot < slots.count; slot++) {
    slots.version[slot] = versions[slot];
    if (spec !== undefined) slots.steps[slot] = steps[slot];
  }
  state.dirty = true;
}

/** The tensors of a slot, in the order of its memories: its values, and the states of an optimiser. */
function tensorsOf(optimizer: Optimizer | undefined, dtype: DType): { readonly prefix: string; readonly dtype: DType }[] {
  const states = stateNames(optimizer, dtype).map((name) => ({ prefix: `state/${name}`, dtype: stateType(dtype) }));
  return [{ prefix: 'parameter', dtype }, ...states];
}

/** Values, and states of the optimiser, which is the present one. */
function readMemories(state: ServerState, snapshot: Snapshot, optimizer: Optimizer | undefined): void {
  const { slots } = state;
  for (let slot = 0; slot < slots.count; slot++) {
    slots.writable(slot, slot + 1);
    const memories = slots.memories(slot);
    for (const [k, { prefix }] of tensorsOf(optimizer, slots.dtype(slot)).entries())
      readTensor(state, snapshot, { prefix, slot, target: memories[k] });
  }
}

function readSlabTensors(state: ServerState, snapshot: Snapshot, prefix: string, slabs: readonly Uint8Array[]): void {
  const { slots } = state;
  for (let slot = 0; slot < slots.count; slot++) {
    const slab = slabs[slots.slab[slot]];
    if (slab === undefined) continue;
    readTensor(state, snapshot, { prefix, slot, target: slab.subarray(slots.start[slot], slots.end[slot]) });
  }
}

function readTensor(
  { slots, directory, options }: ServerState,
  snapshot: Snapshot,
  { prefix, slot, target }: { prefix: string; slot: number; target: Uint8Array },
): void {
  const tensor = snapshot.tensors.get(`${prefix}/${slotName(directory, options.server, slot)}`);
  if (tensor?.data.byteLength !== target.byteLength) throw damaged(`${prefix} of ${slots.describe(slot)}`);
  target.set(tensor.data);
}

/** The name of a slot's values, behind a prefix. */
export function slotName(directory: ParameterDirectory, server: number, slot: number): string {
  const { parameter, firstElement } = directory.slots(server)[slot];
  const { key, pieces } = directory.parameter(parameter);
  if (pieces.length > 1) return `${key}@${firstElement}`;
  // A key that looks like a slice of another.
  return /@\d+$/.test(key) ? `${key}@0` : key;
}

export function numbers(values: readonly number[]): SnapshotTensor {
  const data = Float64Array.from(values);
  return { dtype: 'float64' satisfies DType, shape: [values.length], data: new Uint8Array(data.buffer) };
}

export function countsOf(snapshot: Snapshot, name: string, length: number): number[] {
  const counts = Array.from({ length }, () => 0);
  readNumbers(snapshot, name, counts);
  return counts;
}

function readNumbers(snapshot: Snapshot, name: string, target: number[]): void {
  const tensor = snapshot.tensors.get(name);
  if (tensor === undefined || tensor.data.byteLength !== target.length * 8) throw damaged(name);
  const bytes = Uint8Array.from(tensor.data);
  for (const [k, value] of new Float64Array(bytes.buffer).entries()) target[k] = value;
}

/** The entry of a session in a snapshot. Requests up to `settled` are in the snapshot, and up to `durable` in an earlier one, on disk. */
type SessionEntry = [string, number, number, number, number, number, number, number, number, [slot: number, round: number][]?, Presence?];

/** Where workers come and go: whether a client is there, and the rounds before those at which it enters. */
interface Presence {
  readonly joins: boolean;
  readonly absent: boolean;
  readonly returns: boolean;
  readonly lost: { readonly code: ErrorCode; readonly message: string } | null;
  readonly before: readonly (readonly [slot: number, round: number])[];
}

function presenceOf({ joins, returns, lost, member, rounds }: ServerSession): Presence {
  const before = rounds.settled.flatMap((round, slot) => {
    const isBefore = !member.absent && member.received[slot] > round && member.held[slot] === undefined;
    return isBefore
      ? [[slot, member.received[slot] - (member.early.get(slot) ?? []).filter((each) => each !== undefined).length] as const]
      : [];
  });
  return { joins, returns, absent: member.absent, lost: lost === undefined ? null : { code: lost.code, message: lost.message }, before };
}

function restorePresence(state: ServerState, session: ServerSession, { absent, returns, lost, before }: Presence): void {
  session.returns = returns;
  for (const [slot, round] of before) session.member.received[slot] = round;
  session.member.absent = absent;
  if (session.replaced) return;
  if (absent) state.dismiss(session, lost === null ? undefined : new ShoalError(lost.code, lost.message));
  else session.rounds.recount();
}

function readSession(entry: unknown) {
  const [address, group, firstWorker, workers, settled, configuration, durable, heard, lastRepeated, missed = [], presence] =
    entry as SessionEntry;
  const counts = { group, firstWorker, workers, settled, configuration, durable, lastRepeated };
  return { ...counts, address: BigInt(address), heard: heard > 0, missed, presence };
}

/** The declared parameters: keys, dtypes, shapes, and where the pieces are. */
export function packBatches(directory: ParameterDirectory): unknown[] {
  return Array.from({ length: directory.batches }, (_, k) => packBatch(directory.batch(k)));
}

export function metadataOf(fields: ControlFields): Snapshot['metadata'] {
  return { format, shoal: Buffer.from(encodeControl(fields)).toString('utf8') };
}

export function fieldsOf<T>(snapshot: Snapshot, shape: Shape<T>): T {
  if (snapshot.metadata.format !== format) throw damaged('its format');
  return readControl(Buffer.from(snapshot.metadata.shoal ?? '', 'utf8'), shape);
}

export function damaged(what: string): ShoalError {
  return new ShoalError('protocol', `a snapshot cannot be used: ${what} is missing or damaged; remove it, or use another folder`);
}
