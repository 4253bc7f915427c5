/** State that other servers saved, cut and dealt otherwise, as this server would have saved it: another number of servers,
 *  another size of slices, another order of parameters.
 *
 *      saved by 2        server 0  ├──── w ────┤ a          server 1  ├──── w@6 ───┤ b
 *      this is 1 of 3    ·······├── w@4 ──┤ b ········
 *
 *  Files are read one after the other: no more than one of them is in memory, beside this server's own part. */
import { pushTo } from '../../base/collections/lists.ts';
import { ShoalError } from '../../base/errors.ts';
import type { ValueOf } from '../../base/schema.ts';
import { dtypeInfo } from '../../memory/dtype.ts';
import type { Snapshot, SnapshotTensor } from '../../checkpoint/snapshot.ts';
import { ParameterDirectory, unpackBatch, type DeclaredParameter } from '../protocol/parameter-directory.ts';
import { checkSame } from '../values/same-parameters.ts';
import { countsOf, damaged, fieldsOf, metadataOf, numbers, packBatches, savedPlacement, slotName } from './snapshot.ts';
import type { ServerState } from './state/server-state.ts';

type Placement = ValueOf<typeof savedPlacement>;

/** The part of one own slot, as it comes together. */
interface Part {
  readonly slot: number;
  readonly firstElement: number;
  readonly elements: number;
  /** Tensors by prefix: `parameter`, `state/<name>`. */
  readonly tensors: Map<string, SnapshotTensor>;
  found: number;
  version: number;
  steps: number;
}

/** Whether the snapshot is cut and dealt as this server's state is. */
export function fits({ directory, options }: ServerState, snapshot: Snapshot): boolean {
  const { topology, server, batches } = fieldsOf(snapshot, savedPlacement);
  const same = topology.serversPerGroup === options.topology.serversPerGroup && server === options.server;
  return same && JSON.stringify(batches) === JSON.stringify(packBatches(directory));
}

/** @returns what `replaceValues` takes.
 *  @throws ShoalError `usage` when files are missing, `mismatch` when the parameters are others. */
export async function reslice(state: ServerState, { folder, save }: { folder: string; save: string }): Promise<Snapshot> {
  const own = new OwnParts(state);
  let fields: Placement | undefined;
  for (let server = 0, servers = 1; server < servers; server++) {
    const snapshot = await state.options.storeAt(folder, server).load(save);
    if (snapshot === undefined) {
      const what = server === 0 ? 'no saved state' : `no state of server ${server} of the ${servers} that saved`;
      throw new ShoalError('usage', `there is ${what} in ${folder}; every server must see the folder that saveState wrote`);
    }
    fields = fieldsOf(snapshot, savedPlacement);
    servers = fields.topology.serversPerGroup;
    own.take(snapshot, fields, { server, servers });
  }
  return own.snapshot(fields!);
}

class OwnParts {
  readonly #state: ServerState;
  /** Parts by key. */
  readonly #parts = new Map<string, Part[]>();

  constructor(state: ServerState) {
    this.#state = state;
    const { directory, options } = state;
    for (const [slot, { parameter, firstElement, elements }] of directory.slots(options.server).entries()) {
      const { key } = directory.parameter(parameter);
      const part = { slot, firstElement, elements, tensors: new Map(), found: 0, version: Infinity, steps: Infinity };
      pushTo(this.#parts, key, part);
    }
  }

  take(snapshot: Snapshot, fields: Placement, { server, servers }: { readonly server: number; readonly servers: number }): void {
    const saved = new ParameterDirectory(servers);
    for (const batch of fields.batches) saved.add(unpackBatch(batch));
    checkSame(parametersOf(this.#state.directory), parametersOf(saved));
    const prefixes = [...new Set([...snapshot.tensors.keys()].map((name) => /^(parameter|state\/[^/]+)\//.exec(name)?.[1]))];
    const [versions, steps] = ['version', 'steps'].map((name) => countsOf(snapshot, name, saved.slots(server).length));
    for (const [slot, { parameter, firstElement, elements }] of saved.slots(server).entries()) {
      const { key } = saved.parameter(parameter);
      for (const part of this.#parts.get(key) ?? []) {
        const from = Math.max(firstElement, part.firstElement);
        const to = Math.min(firstElement + elements, part.firstElement + part.elements);
        if (from > to || (from === to && elements > 0)) continue;
        part.found += to - from;
        part.version = Math.min(part.version, versions[slot]);
        part.steps = Math.min(part.steps, steps[slot]);
        for (const prefix of prefixes) {
          const tensor = prefix === undefined ? undefined : snapshot.tensors.get(`${prefix}/${slotName(saved, server, slot)}`);
          if (prefix === undefined || tensor === undefined) continue;
          const { dtype } = tensor;
          const { bytes } = dtypeInfo(dtype);
          if (tensor.data.byteLength !== elements * bytes) throw damaged(`${prefix} of '${key}'`);
          const piece = tensor.data.subarray((from - firstElement) * bytes, (to - firstElement) * bytes);
          const whole = part.tensors.get(prefix) ?? { dtype, shape: [part.elements], data: new Uint8Array(part.elements * bytes) };
          whole.data.set(piece, (from - part.firstElement) * bytes);
          part.tensors.set(prefix, whole);
        }
      }
    }
  }

  snapshot({ optimizer }: Placement): Snapshot {
    const { directory, options, slots } = this.#state;
    const tensors = new Map<string, SnapshotTensor>();
    const [versions, steps] = [slots.version.map(() => 0), slots.steps.map(() => 0)];
    for (const part of [...this.#parts.values()].flat()) {
      if (part.found !== part.elements) throw damaged(slots.describe(part.slot));
      for (const [prefix, tensor] of part.tensors) tensors.set(`${prefix}/${slotName(directory, options.server, part.slot)}`, tensor);
      versions[part.slot] = part.version;
      steps[part.slot] = part.steps;
    }
    tensors.set('version', numbers(versions));
    tensors.set('steps', numbers(steps));
    return { tensors, metadata: metadataOf({ group: options.group, server: options.server, optimizer }) };
  }
}

function parametersOf(directory: ParameterDirectory): Map<string, DeclaredParameter> {
  const all = Array.from({ length: directory.count }, (_, index) => directory.parameter(index));
  return new Map(all.map((parameter) => [parameter.key, parameter]));
}
