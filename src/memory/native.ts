/** The addon, typed, and its only loader. Everything the addon does has a twin in JavaScript except memory shared between
 *  processes, so its absence is never an error here. Each thread loads it for itself.
 *
 *  It is the one compiled on this machine (build/Release), else the one that came with the package (prebuilds/<platform>-<arch>,
 *  where node-gyp-build would look: a package that every thread of every rank would load to find one of two files).
 *  `SHOAL_NATIVE=0` in the environment disables it whatever the caller asks. */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, sep } from 'node:path';
import { messageOf } from '../base/errors.ts';
import { execCommand } from '../base/settings/install-commands.ts';
import { packageFile } from '../base/packages/package-root.ts';
import type { Environment } from '../base/settings/settings.ts';
import { nativeInterface } from './native-interface.ts';
import type { NativeRecords } from './native-records.ts';
import type { NativeWire } from './native-wire.ts';
import type { ParameterKernels, Reals } from './parameter-kernels.ts';
import type { Repetition } from './step-machine.ts';

declare const opaque: unique symbol;
/** Handle of a native object; only functions of the addon look inside. */
interface Handle<Name extends string> {
  readonly [opaque]: Name;
}
export type MappingHandle = Handle<'mapping'>;
export type SegmentsHandle = Handle<'segments'>;
export type ProgramHandle = Handle<'program'>;
export type RegistersHandle = Handle<'registers'>;
export type LivesHandle = Handle<'lives'>;

/** A mapping of shared memory. */
export interface NativeMapping {
  readonly buffer: ArrayBuffer;
  readonly handle: MappingHandle;
  /** The creator's descriptor; −1 for a mapping of another's region. */
  readonly fd: number;
  readonly device: number;
  readonly inode: number;
}

/** Kernels of one instruction set. dtypes and operators are given by code; operands must have passed kernels/check.ts. */
export interface NativeLoops {
  /** The instruction set: `avx512`, `avx2` or `generic`. */
  readonly isa: string;
  /** Reduces; a NaN divisor means none. */
  reduce(
    dtype: number,
    op: number,
    targets: readonly Uint8Array[],
    sources: readonly Uint8Array[],
    tree: readonly number[],
    divisor: number,
  ): void;
  scale(dtype: number, target: Uint8Array, source: Uint8Array, factor: number): void;
  convert(targetDtype: number, target: Uint8Array, sourceDtype: number, source: Uint8Array): void;
}

/** Loops of a parameter server; operands must have passed parameter-kernels.ts. */
export interface NativeParameterLoops extends Omit<ParameterKernels, 'update'> {
  update(rule: number, value: Reals, gradient: Reals, states: readonly Reals[], parameters: Float64Array): void;
}

/** Functions of the addon, without those of the optional carriers, whose folders declare them. The loops directly on it are the best that
 *  this CPU can run. */
export interface Native extends NativeLoops, NativeRecords, NativeWire {
  readonly version: string;
  /** All other loops that this CPU can run, down to those for any CPU of this architecture; for tests. */
  readonly others: readonly NativeLoops[];
  /** The best parameter loops for this CPU, and, for tests, those for any. */
  readonly parameters: NativeParameterLoops & { readonly generic: NativeParameterLoops };
  createRegion(bytes: number): NativeMapping;
  openRegion(path: string, bytes: number, device: number, inode: number): NativeMapping;
  closeRegion(handle: MappingHandle, buffer: ArrayBuffer): void;
  copy(target: Uint8Array, source: Uint8Array): void;
  /** Asks for the first of `names` that the kernel grants to a TCP socket. Returns the one in force; undefined: not a TCP socket. */
  congestionControl(descriptor: number, names: readonly string[]): string | undefined;
  /** Fills `counts` with the segments of data a TCP socket has sent so far, with those sent again, and those sent again alone.
   *  False when the kernel does not say. */
  socketSegments(descriptor: number, counts: Float64Array): boolean;
  /** Makes a timer: a descriptor to watch, readable once its time has come. Any thread of this process may set it. */
  createTimer(): number;
  /** Sets the timer's time from now, less than a second; 0: never. An earlier expiry is forgotten. */
  setTimer(timer: number, nanoseconds: number): void;
  closeTimer(timer: number): void;
  /** Holds the lock `own`, one word that other processes map, and sets `timer` whenever a process has ended whose lock is watched. `own` must
   *  stay mapped until `closeLives`. */
  createLives(own: Uint32Array, timer: number): LivesHandle;
  /** Watches these locks from now on, and no others: they must stay mapped as long. */
  watchLives(lives: LivesHandle, locks: readonly Uint32Array[]): void;
  closeLives(lives: LivesHandle): void;
  /** Ends the stream that a socket receives, after what has come. */
  endReading(descriptor: number): void;
  createSegments(count: number): SegmentsHandle;
  /** Remembers the address of `view`: the caller must keep it alive and attached while programs run. */
  setSegment(segments: SegmentsHandle, index: number, view: Uint8Array): void;
  /** Remembers the address of `words` (MachineRegisters), under the same condition. */
  bindRegisters(words: Float64Array): RegistersHandle;
  /** Remembers the address of `code`, under the same condition. */
  createProgram(code: Float64Array, segments: SegmentsHandle): ProgramHandle;
  /** Returns an index into `machineStatuses`. */
  runSteps(program: ProgramHandle, registers: RegistersHandle): number;
  /** Makes a function of `RepetitionOptions`; it keeps `kept` alive. */
  createRepetition(
    even: ProgramHandle,
    odd: ProgramHandle,
    registers: RegistersHandle,
    code: Float64Array,
    operands: Uint32Array,
    numbers: Float64Array,
    runs: Float64Array,
    stop: Uint32Array,
    record: Uint32Array,
    log: Uint32Array,
    spinNs: number,
    yields: boolean,
    kept: unknown,
  ): Repetition;
}

export interface NativeOptions {
  readonly enabled: boolean;
}

const builtBinary = packageFile('build/Release/shoal.node');
const prebuiltBinary = packageFile(`prebuilds/${process.platform}-${process.arch}/shoal.napi.glibc.node`);

/** Path of the addon, or the path it would have if it were compiled. */
export const nativeBinary = existsSync(builtBinary) || !existsSync(prebuiltBinary) ? builtBinary : prebuiltBinary;

/** The program that is made together with the addon, and that does not run either where the addon cannot be loaded. */
export const rankProgram = join(dirname(nativeBinary), 'shoal-rank');

/** The addon, or undefined when it is disabled, not built, or cannot be loaded. */
export function loadNative(options: NativeOptions): Native | undefined {
  const loaded = load(options);
  return typeof loaded === 'string' ? undefined : loaded;
}

/** The reason why `loadNative` returns undefined, with the next step; undefined when it does not. */
export function nativeUnavailableReason(options: NativeOptions = { enabled: true }): string | undefined {
  const loaded = load(options);
  return typeof loaded === 'string' ? loaded : undefined;
}

/** The command that compiles the addon. */
function compileCommand(environment: Environment): string {
  return nativeBinary.includes(`${sep}node_modules${sep}`) ? execCommand(environment, 'shoal compile') : 'npm ci';
}

function load(options: NativeOptions): Native | string {
  if (!options.enabled) return 'the native addon is disabled by the settings';
  if (process.env.SHOAL_NATIVE === '0') return 'the native addon is disabled by SHOAL_NATIVE=0';
  if (!existsSync(nativeBinary))
    return `the native addon is not there (the package has none for ${process.platform}-${process.arch}); run ${compileCommand(process.env)}, which compiles it or says what is missing`;
  try {
    const native = createRequire(import.meta.url)(nativeBinary) as Native;
    if (native.version === nativeInterface) return native;
    return `the native addon has interface ${native.version}, this package needs ${nativeInterface}; run ${compileCommand(process.env)}`;
  } catch (error) {
    return `the native addon cannot be loaded: ${messageOf(error)}; run ${compileCommand(process.env)}`;
  }
}
