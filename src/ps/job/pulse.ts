/** The pulse of a process: whether it runs, whatever its threads compute. A thread that does nothing else listens, and answers whoever
 *  proves that it knows the job's secret. It speaks as a store does (store/store-server.ts), of which only the handshake is used.
 *
 *      comm thread, busy      ·············✗ no message               a process that is stopped sends neither
 *      pulse thread ◀── ask ──────────────── whoever waits for one
 *                   ─── proof ─────────────▶ it runs */
import { Worker } from 'node:worker_threads';
import type { Clock } from '../../base/clock.ts';
import { isShoalError, ShoalError } from '../../base/errors.ts';
import { codeOf, exhaustion, isExhaustion } from '../../base/exhaustion.ts';
import { builtEntry } from '../../base/packages/package-root.ts';
import type { Random } from '../../base/random.ts';
import type { LinkSettings } from '../../base/secure/link.ts';
import { StoreClient } from '../../store/store-client.ts';

/** `silent`: it is stopped, or its host is, or cannot be reached. `ended`: nobody listens there, or another process does. */
export type Pulse = 'runs' | 'silent' | 'ended';

/** The place where a process is asked, and the knowledge that both ends must have. */
export interface PulsePlace {
  readonly world: string;
  readonly secret: Uint8Array;
  readonly settings?: LinkSettings;
  /** The address that the thread binds, or `any`. */
  readonly host: string;
}

/** Time that an answer may take; without one the process asks again. */
const askMs = 1000;
/** It keeps nothing. */
const resourceLimits = { maxYoungGenerationSizeMb: 1, maxOldGenerationSizeMb: 32 };

export class PulseThread {
  readonly #worker: Worker;
  /** Rejects when the thread fails or ends, also when it does so before `listen` is called. */
  readonly #over: Promise<never>;

  /** @throws ShoalError `out-of-memory`, `system`. */
  constructor() {
    try {
      this.#worker = new Worker(builtEntry('ps/job/pulse-thread.js'), { execArgv: [], name: 'shoal-pulse', resourceLimits });
    } catch (thrown) {
      throw failure(thrown);
    }
    this.#over = new Promise((_, reject) => {
      this.#worker.once('error', reject).once('exit', (code) => reject(new Error(`the pulse thread ended with code ${code}`)));
    });
    // Later faults are found by those who ask.
    this.#over.catch(() => undefined);
  }

  /** @returns the port. @throws ShoalError `out-of-memory`, `system`. */
  async listen(place: PulsePlace): Promise<number> {
    try {
      this.#worker.postMessage(place);
      return await Promise.race([this.#over, new Promise<number>((resolve) => this.#worker.once('message', resolve))]);
    } catch (thrown) {
      throw failure(thrown);
    } finally {
      this.#worker.unref();
    }
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }
}

/** Asks the process whose thread listens there. Time in which the calling process gets no CPU does not count. */
export async function askPulse(
  url: string,
  { world, secret, settings, clock, random }: Omit<PulsePlace, 'host'> & { readonly clock: Clock; readonly random: Random },
): Promise<Pulse> {
  const { hostname, port } = new URL(url);
  const host = hostname.replace(/^\[|\]$/g, '');
  try {
    const asked = { clock, random, host, port: Number(port), world, secret, settings, rank: 0, connectTimeoutMs: askMs };
    await (await StoreClient.connect(asked)).close();
    return 'runs';
  } catch (thrown) {
    // Whoever cannot ask knows nothing; whoever has no descriptor for the answer accepts, and closes.
    const { code, cause } = ShoalError.from(thrown);
    if (isExhaustion(thrown) || (isShoalError(cause) && cause.code === 'peer-lost' && codeOf(cause) === undefined)) return 'runs';
    return code === 'auth' || code === 'config' || codeOf(thrown) === 'ECONNREFUSED' ? 'ended' : 'silent';
  }
}

function failure(thrown: unknown): ShoalError {
  return exhaustion('this process', thrown, 'starting the thread that shows that it runs') ?? ShoalError.from(thrown, 'system');
}
