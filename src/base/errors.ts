/** The one error class of the project. Callers match `code`, never the class or the text:
 *  two copies of the package may be loaded, and errors cross threads and processes as data. */

/** Every way an operation can fail. Closed: a new code is an API change. Numbered by their order: append only.
 *
 *  usage        the caller broke the API's contract (wrong argument, wrong state)
 *  config       a setting or environment variable is missing, malformed or disagrees between ranks
 *  unsupported  the request is valid, this build, host or dtype cannot serve it
 *  mismatch     ranks called different collectives
 *  timeout      a deadline passed; says who arrived and who did not
 *  peer-lost    a rank died or its connection broke
 *  protocol     a peer sent bytes that violate the wire format
 *  auth         a peer does not know the job's secret
 *  aborted      cancelled by the caller's signal or because another rank failed
 *  closed       used after close or destroy
 *  out-of-memory  memory, file descriptors, threads or a budget is exhausted; `resource` names what the system has no more of
 *  system       the operating system refused */
export const errorCodes = [
  'usage',
  'config',
  'unsupported',
  'mismatch',
  'timeout',
  'peer-lost',
  'protocol',
  'auth',
  'aborted',
  'closed',
  'out-of-memory',
  'system',
] as const;

/** The kind of failure; see docs/errors.md. */
export type ErrorCode = (typeof errorCodes)[number];

/** Facts of an error beside its text. Bytes are bytes, times are milliseconds, ranks are global. */
export interface ErrorFields {
  rank?: number;
  peer?: number;
  operation?: string;
  sequence?: number;
  bytes?: number;
  timeoutMs?: number;
  /** The resource that `rank` has run out of: `file descriptors`, `threads`, `memory`. */
  resource?: string;
  cause?: unknown;
}

/** A `ShoalError` as plain data, for other threads and processes. */
export interface ErrorData extends Omit<ErrorFields, 'cause'> {
  code: ErrorCode;
  message: string;
  cause?: string;
}

/** An operating error. The message names who, what and the next step. */
export class ShoalError extends Error {
  /** The same for every ShoalError, whichever copy of the package made it. */
  override readonly name = 'ShoalError';
  /** The kind of failure: match this. */
  readonly code: ErrorCode;
  // Fields that are not known are not set: an error that nobody catches is printed with all its fields.
  /** The rank of the world that reports the error. */
  declare readonly rank: number | undefined;
  /** The rank of the world that the error is about. */
  declare readonly peer: number | undefined;
  /** Name of the call. */
  declare readonly operation: string | undefined;
  /** Position in the group's order of calls. */
  declare readonly sequence: number | undefined;
  /** Number of bytes that the call was about. */
  declare readonly bytes: number | undefined;
  /** The limit that passed. Milliseconds. */
  declare readonly timeoutMs: number | undefined;
  /** The resource that `rank` has run out of: `file descriptors`, `threads`, `memory`. */
  declare readonly resource: string | undefined;

  constructor(code: ErrorCode, message: string, fields: ErrorFields = {}) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.code = code;
    for (const name of ['rank', 'peer', 'operation', 'sequence', 'bytes', 'timeoutMs', 'resource'] as const)
      if (fields[name] !== undefined) Object.assign(this, { [name]: fields[name] });
    if (ofTheCaller.has(code)) this.stack = withoutOwnFrames(this.stack);
  }

  /** The error as plain data, for another thread or process. */
  toData(): ErrorData {
    const { code, message, rank, peer, operation, sequence, bytes, timeoutMs, resource } = this;
    const text = this.cause === undefined ? undefined : messageOf(this.cause);
    // A cause that the message repeats would be printed twice.
    const cause = text !== undefined && message.includes(text) ? undefined : text;
    return { code, message, rank, peer, operation, sequence, bytes, timeoutMs, resource, cause };
  }

  /** The error that `toData` has described. */
  static fromData(data: ErrorData): ShoalError {
    const { stackTraceLimit } = Error;
    // Stack frames of the receiving place say nothing; the message says where the call was made.
    Error.stackTraceLimit = 0;
    const error = new this(data.code, data.message, data);
    Error.stackTraceLimit = stackTraceLimit;
    // Node.js prints an error without any frame in brackets.
    error.stack += '\n    at shoal:internal';
    return error;
  }

  /** Any thrown value as a `ShoalError`; one that already is stays itself. */
  static from(thrown: unknown, code: ErrorCode = 'system', fields: ErrorFields = {}): ShoalError {
    if (isShoalError(thrown)) return thrown;
    return new this(code, messageOf(thrown), { ...fields, cause: thrown });
  }
}

/** Codes of errors that the caller's own line explains; none of these is made often. */
const ofTheCaller: ReadonlySet<ErrorCode> = new Set(['usage', 'config', 'unsupported', 'out-of-memory']);

/** The stack without frames of the installed package; one is left if there is no other. */
function withoutOwnFrames(stack: string | undefined): string | undefined {
  const others = stack?.replace(/\n {4}at [^\n]*\/node_modules\/shoal\/[^\n]*/g, '');
  return others?.includes('\n    at ') ? others : stack;
}

/** True also for errors that another copy of the package made, which `instanceof` does not recognise. */
export function isShoalError(thrown: unknown): thrown is ShoalError {
  return thrown instanceof Error && thrown.name === 'ShoalError' && 'code' in thrown;
}

/** The failure of `what`: code and facts of its cause, whose message follows. */
export function failureOf(what: string, cause: ShoalError): ShoalError {
  return new ShoalError(cause.code, `${what}: ${cause.message}`, { ...cause.toData(), cause });
}

export function messageOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}
