/** Runs the same program of several builds in turns: all of them live at the same time, one of them works, for some milliseconds.
 *
 *     build a  ▇▇      ▇▇      ▇▇         a turn: one case, as often as the program says
 *     build b    ▇▇      ▇▇      ▇▇
 *     build c      ▇▇      ▇▇      ▇▇
 *
 *  Machines whose CPUs are shared run once or twice as fast for seconds, whatever runs. Turns are shorter than that, so that a ratio
 *  within one round of turns compares like with like. */
import { createServer, type Server, type Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { join } from 'node:path';

export interface TurnTaker {
  readonly build: string;
  /** Number of processes that take turns (turns.mjs). */
  readonly processes: number;
  /** Runs the program with `BENCH_TURNS`; resolves when it has ended. */
  start(environment: Readonly<Record<string, string>>): Promise<unknown>;
}

export interface TurnsOptions {
  /** Rounds of turns that count. */
  readonly turns: number;
  /** Folder for sockets. */
  readonly scratch: string;
}

/** Microseconds of each case by build. */
export type TurnTimes = Map<string, Map<string, number[]>>;

/** The first message of a process. */
interface Cases {
  readonly cases: readonly string[];
  readonly atStart: Readonly<Record<string, number>>;
}

/** One number per turn: the median of the turn, in the process that took longest; and one for what programs took while they started, one
 *  after the other. Builds that do not have the program are left out. */
export async function inTurns(takers: readonly TurnTaker[], { turns, scratch }: TurnsOptions): Promise<TurnTimes> {
  const programs = takers.map((taker) => new Program(taker, join(scratch, `${taker.build}.sock`)));
  try {
    const there: Program[] = [];
    for (const program of programs) if (await program.begin()) there.push(program);
    const times: TurnTimes = new Map();
    for (const name of Object.keys(there.at(0)?.atStart ?? {})) {
      times.set(name, new Map(there.map(({ build, atStart }) => [build, [atStart[name]]])));
    }
    for (const [index, name] of (there.at(0)?.cases ?? []).entries()) {
      const byBuild = new Map(there.map(({ build }): [string, number[]] => [build, []]));
      times.set(name, byBuild);
      for (const program of there) await program.turn(index, true);
      for (let turn = 0; turn < turns; turn++) {
        const first = turn % there.length;
        for (const program of [...there.slice(first), ...there.slice(0, first)]) {
          byBuild.get(program.build)!.push(await program.turn(index, false));
        }
      }
    }
    return times;
  } finally {
    await Promise.all(programs.map((program) => program.end()));
  }
}

class Program {
  readonly #taker: TurnTaker;
  readonly #path: string;
  readonly #server: Server;
  readonly #sockets: Socket[] = [];
  #onLine: (line: string) => void = () => undefined;
  #ended: Promise<unknown> = Promise.resolve();
  cases: readonly string[] = [];
  atStart: Readonly<Record<string, number>> = {};

  constructor(taker: TurnTaker, path: string) {
    this.#taker = taker;
    this.#path = path;
    this.#server = createServer((socket) => {
      this.#sockets.push(socket);
      createInterface({ input: socket }).on('line', (line) => this.#onLine(line));
    });
  }

  get build(): string {
    return this.#taker.build;
  }

  /** @returns false if this build does not have the program. */
  async begin(): Promise<boolean> {
    await new Promise<void>((resolve) => this.#server.listen(this.#path, resolve));
    const lines = this.#lines();
    this.#ended = this.#taker.start({ BENCH_TURNS: this.#path });
    try {
      const said = (await Promise.race([lines, this.#failed()])).map((line) => JSON.parse(line) as Cases);
      ({ cases: this.cases, atStart: this.atStart } = said[0]);
      return true;
    } catch (error) {
      this.#ended = Promise.resolve();
      if (!/ERR_PACKAGE_PATH_NOT_EXPORTED|unknown option/.test(String(error))) throw error;
      console.error(`${this.build} does not have this program`);
      return false;
    }
  }

  /** One case. @returns the time of the slowest process. */
  async turn(index: number, warms: boolean): Promise<number> {
    const lines = this.#lines();
    for (const socket of this.#sockets) socket.write(`${JSON.stringify({ index, warms })}\n`);
    return Math.max(...(await Promise.race([lines, this.#failed()])).map(Number));
  }

  async end(): Promise<void> {
    for (const socket of this.#sockets) socket.end();
    await this.#ended;
    this.#server.close();
  }

  /** One line of each process. */
  #lines(): Promise<string[]> {
    const lines: string[] = [];
    return new Promise((resolve) => {
      this.#onLine = (line) => {
        if (lines.push(line) === this.#taker.processes) resolve(lines);
      };
    });
  }

  async #failed(): Promise<never> {
    await this.#ended;
    throw new Error(`${this.build} has ended before its turn`);
  }
}
