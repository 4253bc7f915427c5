/** Frames of rare messages: JSON objects, read field by field with checks. */
import { areCounts, isCount } from '../../base/bytes.ts';
import { ShoalError, type ErrorCode } from '../../base/errors.ts';
import { malformed, type OptimizerNotice } from './wire.ts';

/** Directories of parameters are the largest. */
const controlBytesMax = 256 * 2 ** 20;

export type ControlFields = Readonly<Record<string, unknown>>;

export function encodeControl(fields: ControlFields): Uint8Array {
  return Buffer.from(JSON.stringify(fields), 'utf8');
}

/** The error of a control request as a field. */
export function packError(error: ShoalError): unknown {
  return { code: error.code, message: error.message };
}

/** What a server says of its optimiser, as fields. */
export function packNotice({ version, refuses }: OptimizerNotice): ControlFields {
  return { optimizer: version, refuses };
}

/** A received object. Every reader throws ShoalError `protocol` when the field is not what it should be. */
export class Control {
  readonly #fields: ControlFields;

  private constructor(fields: ControlFields) {
    this.#fields = fields;
  }

  static decode(frame: Uint8Array | undefined): Control {
    if (frame === undefined || frame.byteLength > controlBytesMax) throw malformed('it has no fields');
    let fields: unknown;
    try {
      fields = JSON.parse(Buffer.from(frame.buffer, frame.byteOffset, frame.byteLength).toString('utf8'));
    } catch {
      throw malformed('its fields are no JSON');
    }
    if (typeof fields !== 'object' || fields === null || Array.isArray(fields)) throw malformed('its fields are no object');
    return new Control(fields as ControlFields);
  }

  has(name: string): boolean {
    return Object.hasOwn(this.#fields, name);
  }

  value(name: string): unknown {
    return this.has(name) ? this.#fields[name] : undefined;
  }

  /** A whole number from 0. */
  count(name: string): number {
    const value = this.value(name);
    if (!isCount(value)) throw malformed(`its field ${name} is no whole number`);
    return value;
  }

  text(name: string): string {
    const value = this.value(name);
    if (typeof value !== 'string') throw malformed(`its field ${name} is no text`);
    return value;
  }

  flag(name: string): boolean {
    const value = this.value(name);
    if (typeof value !== 'boolean') throw malformed(`its field ${name} is not true or false`);
    return value;
  }

  list(name: string): readonly unknown[] {
    const value = this.value(name);
    if (!Array.isArray(value)) throw malformed(`its field ${name} is no list`);
    return value as unknown[];
  }

  counts(name: string): readonly number[] {
    const values = this.list(name);
    if (!areCounts(values)) throw malformed(`its field ${name} has no whole numbers`);
    return values;
  }

  /** What `packNotice` made; undefined when there is none. */
  notice(): OptimizerNotice | undefined {
    return this.has('optimizer') ? { version: this.count('optimizer'), refuses: this.flag('refuses') } : undefined;
  }

  /** The error that `packError` made; undefined when there is none. */
  error(name: string): ShoalError | undefined {
    const value = this.value(name);
    if (value === undefined) return undefined;
    if (typeof value !== 'object' || value === null) throw malformed(`its field ${name} is no error`);
    const { code, message } = value as { code?: unknown; message?: unknown };
    if (typeof code !== 'string' || typeof message !== 'string') throw malformed(`its field ${name} is no error`);
    return new ShoalError(code as ErrorCode, message);
  }
}
