// Takes turns with the same program of other builds: a coordinator says through a socket which case is next, and how often it runs.
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

/** Runs cases until the coordinator ends. @param cases `run(times)` gives the microseconds of each time; a turn has `times`, the first one
 *  has `warmUps` and does not count. @param atStart microseconds that were taken while this process started, by name. */
export async function takeTurns(cases, atStart = {}) {
  const socket = connect(process.env.BENCH_TURNS);
  const say = (message) => socket.write(`${JSON.stringify(message)}\n`);
  say({ cases: cases.map(({ name }) => name), atStart });
  for await (const line of createInterface({ input: socket })) {
    const { index, warms } = JSON.parse(line);
    const { run, times, warmUps } = cases[index];
    say(median(await run(warms ? warmUps : times)));
  }
}

export function median(times) {
  return Float64Array.from(times).sort()[times.length >> 1] ?? 0;
}

/** Microseconds of each of `times` calls of `step`. */
export async function timed(times, step) {
  const took = [];
  for (let k = 0; k < times; k++) {
    const startMs = performance.now();
    await step();
    took.push((performance.now() - startMs) * 1000);
  }
  return took;
}
