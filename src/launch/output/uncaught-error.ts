/** The error that ends a process of Node.js, as Node.js writes it to stderr: place, source line, message, stack. The launcher shows it
 *  once, short, and only that of the process that failed first. A rank marks where it begins, behind everything that the script itself
 *  writes:
 *
 *      what the script says ─▶ mark ─▶ "train.ts:4", source, caret, "Error: …", stack, "Node.js v20.20.2"
 *
 *  It must not know processes. */

const mark = Buffer.from('\0uncaught\0');

/** The source of a module that runs in a rank before its script does. Listeners of `exit` run before Node.js writes the error; the last one
 *  is added when there is an error. A process that goes on ends with a mark, and nothing behind it. Threads, and processes that the rank
 *  forks, have the module, too, but their ends are the rank's business. */
export function uncaughtMarker(launcherPid: number): string {
  return `import{writeSync}from"node:fs";import{isMainThread}from"node:worker_threads";
const mark=()=>{try{writeSync(2,"\\0uncaught\\0")}catch{}};
if(isMainThread&&process.ppid===${launcherPid})process.on("uncaughtExceptionMonitor",()=>process.off("exit",mark).on("exit",mark));`;
}

/** Separates the words of a process from the error that Node.js writes. */
export class UncaughtSplitter {
  #carry: Buffer = Buffer.alloc(0);
  #isBehind = false;

  push(chunk: Buffer): { said: Buffer; behind: Buffer } {
    if (this.#isBehind) return { said: Buffer.alloc(0), behind: chunk };
    const bytes = this.#carry.length === 0 ? chunk : Buffer.concat([this.#carry, chunk]);
    const at = bytes.indexOf(mark);
    this.#isBehind = at >= 0;
    const end = at >= 0 ? at : bytes.length - begunMark(bytes);
    this.#carry = Buffer.from(at >= 0 ? [] : bytes.subarray(end));
    return { said: bytes.subarray(0, end), behind: at >= 0 ? bytes.subarray(at + mark.length) : Buffer.alloc(0) };
  }

  /** Bytes that looked like the begin of a mark. */
  end(): Buffer {
    return this.#carry;
  }
}

/** The number of bytes at the end that may be the begin of a mark. */
function begunMark(bytes: Buffer): number {
  let length = Math.min(mark.length - 1, bytes.length);
  while (length > 0 && !bytes.subarray(bytes.length - length).equals(mark.subarray(0, length))) length--;
  return length;
}

export interface UncaughtError {
  /** The first line of the message: `TypeError: x is not a function`. */
  readonly error: string;
  /** Lines for people: the place of the throw, the message's further lines, code and cause, the script's own frames. */
  readonly details: readonly string[];
  /** Text of processes that this one has left behind. */
  readonly rest: string;
}

/** Reads the text of an uncaught error; undefined for a text that is not complete, or is something else. */
export function readUncaught(text: string): UncaughtError | undefined {
  const end = /\n\nNode\.js v\d[^\n]*\n/.exec(text);
  if (end === null) return undefined;
  const lines = text.slice(0, end.index).replace(/^\n/, '').split('\n');
  const place = takePlace(lines);
  while (lines[0] === '') lines.shift();
  const [error = 'an error without words', ...others] = lines;
  const stack = others.findIndex((line) => /^ {4}at /.test(line));
  const message = (stack < 0 ? others : others.slice(0, stack)).filter((line) => !line.startsWith('(Use `node --trace-uncaught'));
  const frames = others.filter((line) => /^ {4}at /.test(line) && isOfScript(line));
  const fields = others.filter((line) => /^ {2}(\[cause\]|code): /.test(line)).map((line) => line.replace(/,$/, ''));
  return { error, details: [...place, ...message, ...fields, ...frames], rest: text.slice(end.index + end[0].length) };
}

/** Takes place, source line and caret from the begin of the lines. @returns those that say something to the author of a script. */
function takePlace(lines: string[]): string[] {
  if (!/:\d+$/.test(lines[0])) return [];
  const caret = lines.slice(0, 4).findIndex((line) => /^\s*\^+\s*$/.test(line));
  const place = lines.splice(0, caret >= 0 ? caret + 1 : Math.max(1, lines.indexOf('')));
  return isOfScript(place[0]) && place.every((line) => line.length <= sourceMax) ? place : [];
}

/** Longer source lines are not written by people. */
const sourceMax = 200;

function isOfScript(place: string): boolean {
  return place.includes('/') && !/node:|\/node_modules\/|shoal:internal|data:/.test(place);
}
