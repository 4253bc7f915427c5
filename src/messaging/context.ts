/** The surroundings of sockets: who we are, the secret, time, and one backend per kind of URL, made when first used.
 *  As many as you like fit in one process; nothing is shared between them but `inproc` names of the same world. */
import { systemClock, type Clock } from '../base/clock.ts';
import { ShoalError } from '../base/errors.ts';
import {
  anyNumber,
  anyObject,
  anyText,
  anything,
  byteArray,
  checkArgument,
  checkFields,
  checkOptions,
  describeValue,
  literal,
  optionTable,
} from '../base/schema.ts';
import { systemRandom, type Random } from '../base/random.ts';
import type { Backend } from './backend.ts';
import { messagingBackends, type MessagingBackend } from './backends.ts';
import type { FabricEndpoint } from './backends/fabric/fabric.ts';
import { FramePlaces } from './backends/fabric/frame-places.ts';
import type { ThreadGate } from './thread-gate.ts';
import { limitsOf, type MessagingLimits } from './limits.ts';

/** The surroundings of the sockets of one process or thread. */
export interface MessagingOptions {
  /** Name of the job: sockets of another world are never reached. */
  readonly world: string;
  /** The job's secret; what crosses process borders is authenticated and, over tcp, encrypted with keys made of it. */
  readonly secret: Uint8Array;
  /** Time of timeouts and pauses. Default: the system's; tests give one of their own. */
  readonly clock?: Clock;
  /** Numbers of sessions, and pauses before connections are made again. Default: the system's. */
  readonly random?: Random;
  /** Bounds of all sockets of this context. Default: `defaultLimits`. */
  readonly limits?: Partial<MessagingLimits>;
  /** `tcp` and `ipc`: CURVE, or nothing, which only addresses of this host may have. Default `curve`. */
  readonly encryption?: 'curve' | 'none';
  /** The fabric under `fabric://`. */
  readonly fabric?: FabricEndpoint;
  /** The gate of a thread that may be ended while it talks over `tcp` or `ipc`: its owner closes it before. */
  readonly gate?: ThreadGate;
}

const messagingOptions = optionTable<MessagingOptions>({
  world: anyText,
  secret: byteArray,
  clock: anyObject,
  random: anyObject,
  limits: anyObject,
  encryption: literal('curve', 'none'),
  fabric: anyObject,
  gate: anyObject,
});

const fabricEndpoint = optionTable<FabricEndpoint>({
  fabric: anything,
  identity: anyObject,
  regions: anything,
  landing: anyText,
  landingBytes: anyNumber,
});

/** Checks the context that a socket is made with. @throws ShoalError `usage`. */
export function checkContext(socket: string, context: MessagingContext): void {
  if (!(context instanceof MessagingContext))
    throw new ShoalError('usage', `${socket}: the first argument is its MessagingContext, not ${describeValue(context)}`);
}

/** Every dealer and router is made with a context, which makes a backend for each kind of URL when one is first used. Threads have one
 *  each.
 *
 *      await using context = new MessagingContext({ world: 'job-7', secret });
 *      const router = new Router(context);
 *      const url = await router.bind('tcp://127.0.0.1:*'); */
export class MessagingContext implements AsyncDisposable {
  /** The clock as given, or the system's. */
  readonly clock: Clock;
  /** The source of randomness as given, or the system's. */
  readonly random: Random;
  /** Bounds with every default filled in; sockets may lower `messageBytes` and `frames`, and change the others. */
  readonly limits: MessagingLimits;
  /** Memory that peers may write frames to; undefined without a fabric. */
  readonly places: FramePlaces | undefined;
  readonly #options: MessagingOptions;
  readonly #backends = new Map<MessagingBackend, Backend>();
  #closed = false;

  /** @throws ShoalError `usage` for options that cannot be, and for limits that are no positive integers. */
  constructor(options: MessagingOptions) {
    checkFields('MessagingContext', options, messagingOptions);
    const { world, secret } = options;
    checkArgument('MessagingContext: world', world, anyText);
    checkArgument('MessagingContext: secret', secret, byteArray);
    checkOptions('MessagingContext: fabric', options.fabric, fabricEndpoint);
    this.#options = options;
    this.clock = options.clock ?? systemClock;
    this.random = options.random ?? systemRandom;
    this.limits = limitsOf(options.limits);
    this.places = options.fabric && new FramePlaces(options.fabric.fabric);
  }

  /** The backend of a URL. @throws ShoalError `usage` for an unknown one, `unsupported` when this machine lacks it. */
  async backendOf(url: string): Promise<Backend> {
    if (this.#closed) throw contextClosed();
    checkArgument('url', url, anyText);
    const scheme = /^([a-z]+):\/\//.exec(url)?.[1] ?? '';
    const known = messagingBackends.find(({ schemes }) => schemes.includes(scheme));
    if (known === undefined) {
      const all = messagingBackends.flatMap(({ schemes }) => schemes).map((each) => `${each}://`);
      throw new ShoalError('usage', `'${url}' is not an endpoint; there are ${all.join(', ')}`);
    }
    const made = this.#backends.get(known);
    if (made !== undefined) return made;
    const { clock, random, limits, places } = this;
    const backend = await known.create({
      ...this.#options,
      encryption: this.#options.encryption ?? 'curve',
      clock,
      random,
      limits,
      ...(places && { places }),
    });
    // Another call may have been faster, and `close` too.
    const first = this.#backends.get(known);
    if (first !== undefined || this.#closed) {
      await backend.close();
      if (first === undefined) throw contextClosed();
      return first;
    }
    this.#backends.set(known, backend);
    return backend;
  }

  /** A number for one end of one session; never 0. */
  newSession(): number {
    const bytes = Buffer.from(this.random.bytes(6));
    return bytes.readUIntLE(0, 6) + 1;
  }

  /** After the sockets. Idempotent. */
  async close(): Promise<void> {
    this.#closed = true;
    const backends = [...this.#backends.values()];
    this.#backends.clear();
    await Promise.all(backends.map((backend) => backend.close()));
  }

  /** Calls `close`, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function contextClosed(): ShoalError {
  return new ShoalError('closed', 'messaging context is closed');
}
