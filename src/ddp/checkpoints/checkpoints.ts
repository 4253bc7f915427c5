/** Checkpoints of a training in a folder that all ranks share: saved by all ranks together, loaded by any number of them.
 *
 *      every rank   its part of the tensors ─▶ checkpoint.part/model-00002-of-00004.safetensors ─▶ fsync
 *      all          ── how it went ──▶ all-gather                     one that fails fails the save on every rank
 *      rank 0       index ─▶ fsync ─▶ rename checkpoint.part to the next number ─▶ fsync the folder ─▶ remove those before the newest `keep`
 *      all          ◀── how it went ── broadcast
 *
 *      checkpoint-00000007/     the one before      checkpoint-00000008/     the latest      checkpoint.part/     worthless
 *
 *  A folder under its number is whole: all of it was durable before it had the name, and it was never another. What is killed in between
 *  leaves a `.part`, which the next save removes. */
import { createHash } from 'node:crypto';
import { mkdir, rename, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { isShoalError, messageOf, ShoalError, type ErrorCode } from '../../base/errors.ts';
import { systemRandom } from '../../base/random.ts';
import {
  anyObject,
  anyText,
  checkArgument,
  checkFields,
  checkOptions,
  describeValue,
  integer,
  isPlainObject,
  noOptions,
  optionTable,
} from '../../base/schema.ts';
import { makeDurably, numbersIn, syncFolder, writeDurably } from '../../checkpoint/durable.ts';
import { writeSnapshot } from '../../checkpoint/snapshot-file.ts';
import type { Snapshot } from '../../checkpoint/snapshot.ts';
import type { ProcessGroup } from '../../group/caller/types.ts';
import {
  Checkpoint,
  describedTensors,
  encodeIndex,
  indexName,
  readIndex,
  saveKey,
  type CheckpointIndex,
  type CheckpointState,
  type CheckpointTensor,
  type DescribedTensor,
} from './checkpoint.ts';

import { dealtOut } from '../buckets.ts';
import { checkGroup } from '../../group/caller/call-arguments.ts';

/** The part of a process group that checkpoints use. */
export type CheckpointGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allGatherObject' | 'broadcastObject'>;

/** Options of a folder of checkpoints. */
export interface CheckpointsOptions {
  /** Most checkpoints that the folder keeps. Default 2: the latest, and the one before. */
  readonly keep?: number;
}

/** Contents of a checkpoint as one rank gives them to `save`. */
export interface CheckpointContents {
  /** Tensors that are equal on every rank: the model. Each is saved by one of the ranks. */
  readonly tensors?: Readonly<Record<string, CheckpointTensor>>;
  /** Tensors that only this rank has: its part of an optimiser's state. */
  readonly owned?: Readonly<Record<string, CheckpointTensor>>;
  /** Further state to remember: step, position of the sampler, learning rate. Rank 0's is saved. */
  readonly state?: CheckpointState;
}

const checkpointsOptions = optionTable<CheckpointsOptions>({ keep: integer({ min: 1, max: 1000 }) });
const contentFields = optionTable<CheckpointContents>({ tensors: anyObject, owned: anyObject, state: anyObject });
const pattern = /^checkpoint-(\d{8,})$/;
const partName = 'checkpoint.part';
const depthMax = 64;

/** Report of a rank on what it has written, as plain data for the others. */
interface Written {
  readonly error?: string;
  /** Digest of the names, dtypes and shapes in `tensors`, which must be alike on all ranks. */
  readonly alike?: string;
  readonly file?: string;
  readonly bytes?: number;
  readonly names?: readonly string[];
  readonly tensorBytes?: number;
}

/** Saves and finds the checkpoints of a folder. Calls are collective over the group, and must not overlap. */
export class Checkpoints {
  readonly #group: CheckpointGroup;
  readonly #folder: string;
  readonly #keep: number;

  /** @param folder on a file system that all ranks share; made by the first `save`. */
  constructor(group: CheckpointGroup, folder: string, options: CheckpointsOptions = noOptions) {
    checkGroup('Checkpoints', group, 'allGatherObject');
    checkArgument('Checkpoints: folder', folder, anyText);
    checkOptions('Checkpoints', options, checkpointsOptions);
    const { keep = 2 } = options;
    if (folder === '') throw new ShoalError('usage', 'Checkpoints: folder must not be empty');
    this.#group = group;
    this.#folder = resolve(folder);
    this.#keep = keep;
  }

  /** Resolves, on every rank, when the checkpoint is durable; a crash at any moment leaves this one or the one before, whole.
   *  Tensors must not change meanwhile.
   *  @returns the checkpoint's number.
   *  @throws ShoalError `usage` for contents that cannot be saved; `system` on the other ranks then, and when a rank cannot
   *          write, naming it; `mismatch` when `tensors` differ between ranks in names, dtypes or shapes. */
  async save(contents: CheckpointContents): Promise<number> {
    const { rank, size } = this.#group;
    const { number, save } = await this.#begin();
    // An error of this rank must not end the save here: the other ranks wait for its report.
    let own: { readonly state: CheckpointState; readonly written: Written } | ShoalError;
    try {
      const { mine, alike, state } = this.#partOf(contents);
      const file = `model-${padded(rank + 1, 5)}-of-${padded(size, 5)}.safetensors`;
      own = { state, written: { ...(await this.#write(file, mine, save)), alike } };
    } catch (thrown) {
      own = wrapped('this rank cannot save', thrown);
    }
    const outcome = isShoalError(own) ? { error: own.message } : own.written;
    const outcomes = await this.#group.allGatherObject(outcome, { name: 'ddp/checkpoint' });
    if (isShoalError(own)) throw own;
    const { state } = own;
    const unsaved = (code: ErrorCode, peer: number, why: string): ShoalError =>
      new ShoalError(code, `the checkpoint is not saved: ${why}`, { peer, operation: 'ddp/checkpoint' });
    const failed = outcomes.findIndex(({ error }) => error !== undefined);
    if (failed >= 0) throw unsaved('system', failed, `rank ${failed}: ${outcomes[failed].error}`);
    const other = outcomes.findIndex(({ alike }) => alike !== outcomes[0].alike);
    const isOther = 'are not those of rank 0 by name, dtype and shape; give all ranks the same, and what only one has as owned';
    if (other >= 0) throw unsaved('mismatch', other, `tensors of rank ${other} ${isOther}`);
    return this.#finish(number, () => indexOf({ save, ranks: size, state, outcomes }));
  }

  /** This rank's share of the contents. @throws ShoalError `usage`, `unsupported`. */
  #partOf(contents: CheckpointContents): { mine: Map<string, DescribedTensor>; alike: string; state: CheckpointState } {
    checkFields('save', contents, contentFields);
    const { tensors = {}, owned = {}, state = {} } = contents;
    const [replicated, own] = [describedTensors('save', tensors), describedTensors('save', owned)];
    const both = [...own.keys()].find((name) => replicated.has(name));
    if (both !== undefined) throw new ShoalError('usage', `save: tensor '${both}' is among tensors, and among owned`);
    checkState('save: state', state, 0);
    const shares = sharesOf(replicated, this.#group.size);
    const mine = new Map([...[...replicated].filter(([name]) => shares.get(name) === this.#group.rank), ...own]);
    return { mine, alike: digestOf(replicated), state };
  }

  /** The latest checkpoint; undefined when there is none. Every rank finds the same one.
   *  @throws ShoalError `protocol` when it is damaged or foreign, naming the file; `system`. */
  async latest(): Promise<Checkpoint | undefined> {
    const number = await this.#agree('found', async () => (await numbersIn(this.#folder, pattern)).at(-1) ?? 0);
    if (number === 0) return undefined;
    const folder = this.#path(number);
    return new Checkpoint(folder, number, await readIndex(folder));
  }

  /** Rank 0 removes the rest of an earlier save, and numbers this one. */
  async #begin(): Promise<{ number: number; save: string }> {
    return this.#agree('saved', async () => {
      await makeDurably(this.#folder);
      const number = ((await numbersIn(this.#folder, pattern)).at(-1) ?? 0) + 1;
      await rm(join(this.#folder, partName), { recursive: true, force: true });
      await mkdir(join(this.#folder, partName));
      return { number, save: `${number}-${Buffer.from(systemRandom.bytes(8)).toString('hex')}` };
    });
  }

  /** Writes this rank's file. An error is not thrown but reported, for the other ranks to know. */
  async #write(file: string, tensors: ReadonlyMap<string, DescribedTensor>, save: string): Promise<Written> {
    try {
      const snapshot: Snapshot = {
        tensors: new Map([...tensors].map(([name, { dtype, shape, bytes }]) => [name, { dtype, shape, data: bytes }])),
        metadata: { [saveKey]: save },
      };
      const bytes = await writeDurably(join(this.#folder, partName, file), (handle) => writeSnapshot(handle, snapshot));
      const tensorBytes = [...tensors.values()].reduce((sum, tensor) => sum + tensor.bytes.length, 0);
      return { file, bytes, names: [...tensors.keys()], tensorBytes };
    } catch (thrown) {
      return { error: messageOf(thrown) };
    }
  }

  /** Rank 0 writes the index, and gives the checkpoint its name. */
  #finish(number: number, makeIndex: () => { index: CheckpointIndex; totalBytes: number }): Promise<number> {
    return this.#agree('saved', async () => {
      const { index, totalBytes } = makeIndex();
      const part = join(this.#folder, partName);
      for (const [file, bytes] of Object.entries(index.files)) {
        const found = await stat(join(part, file)).catch(() => undefined);
        if (found?.size !== bytes)
          throw new ShoalError('system', `rank 0 does not see ${file} as it was written in ${part}: all ranks must share that folder`);
      }
      await writeDurably(join(part, indexName), (handle) => handle.writeFile(encodeIndex(index, totalBytes)));
      await syncFolder(part);
      await rename(part, this.#path(number));
      await syncFolder(this.#folder);
      for (const old of (await numbersIn(this.#folder, pattern)).slice(0, -this.#keep))
        await rm(this.#path(old), { recursive: true, force: true });
      return number;
    });
  }

  /** Runs `decide` on rank 0, and gives every rank its result, or its error. */
  async #agree<T>(verb: string, decide: () => Promise<T>): Promise<T> {
    let own: { value: T } | { error: ReturnType<ShoalError['toData']> } | undefined;
    if (this.#group.rank === 0) {
      try {
        own = { value: await decide() };
      } catch (thrown) {
        own = { error: wrapped(`a checkpoint cannot be ${verb} in ${this.#folder}`, thrown).toData() };
      }
    }
    const agreed = (await this.#group.broadcastObject(own, { name: 'ddp/checkpoint' })) as NonNullable<typeof own>;
    if ('error' in agreed) throw ShoalError.fromData(agreed.error);
    return agreed.value;
  }

  #path(number: number): string {
    return join(this.#folder, `checkpoint-${padded(number, 8)}`);
  }
}

/** Assigns each tensor that all ranks have to the rank that saves it: the largest first, each to the rank with the fewest bytes.
 *  Every rank computes the same. */
function sharesOf(tensors: ReadonlyMap<string, DescribedTensor>, size: number): Map<string, number> {
  const ordered = [...tensors].sort(([a, x], [b, y]) => y.bytes.length - x.bytes.length || (a < b ? -1 : 1));
  const bytes = ordered.map(([, tensor]) => tensor.bytes.length);
  const ranks = dealtOut(bytes, size);
  return new Map(ordered.map(([name], at) => [name, ranks[at]]));
}

/** Digest of names, dtypes and shapes. Ranks whose tensors differ would each leave a tensor to another rank that does not save it. */
function digestOf(tensors: ReadonlyMap<string, DescribedTensor>): string {
  const described = [...tensors].map(([name, { dtype, shape }]) => JSON.stringify([name, dtype, shape]));
  return createHash('sha256').update(described.sort().join('\n')).digest('hex');
}

/** @throws ShoalError `usage` when two ranks saved a tensor of the same name. */
function indexOf(saved: Pick<CheckpointIndex, 'save' | 'ranks' | 'state'> & { readonly outcomes: readonly Written[] }): {
  index: CheckpointIndex;
  totalBytes: number;
} {
  const { outcomes, ...index } = saved;
  const tensors: Record<string, string> = {};
  const files: Record<string, number> = {};
  let totalBytes = 0;
  for (const [rank, { file = '', bytes = 0, names = [], tensorBytes = 0 }] of outcomes.entries()) {
    files[file] = bytes;
    totalBytes += tensorBytes;
    for (const name of names) {
      if (Object.hasOwn(tensors, name)) {
        const message = `save: rank ${rank} has a tensor '${name}' of its own, which another rank saves as well; own names differ`;
        throw new ShoalError('usage', message);
      }
      Object.defineProperty(tensors, name, { value: file, enumerable: true });
    }
  }
  return { index: { ...index, files, tensors }, totalBytes };
}

/** Refuses values that JSON would lose. */
function checkState(role: string, value: unknown, depth: number): void {
  if (depth > depthMax) throw new ShoalError('usage', `${role} is nested deeper than ${depthMax}`);
  if (value === null || typeof value === 'boolean' || typeof value === 'string' || Number.isFinite(value)) return;
  if (Array.isArray(value)) {
    for (const [index, each] of value.entries()) checkState(`${role}[${index}]`, each, depth + 1);
  } else if (isPlainObject(value)) {
    for (const [key, each] of Object.entries(value)) checkState(`${role}.${key}`, each, depth + 1);
  } else {
    throw new ShoalError('usage', `${role} is ${describeValue(value)}, which JSON has no words for; save arrays as tensors`);
  }
}

function wrapped(what: string, thrown: unknown): ShoalError {
  return isShoalError(thrown) ? thrown : new ShoalError('system', `${what}: ${messageOf(thrown)}`, { cause: thrown });
}

function padded(number: number, digits: number): string {
  return String(number).padStart(digits, '0');
}
