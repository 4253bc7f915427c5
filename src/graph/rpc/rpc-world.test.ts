/** Worlds of calls whose connections break, whose callers go, come late or cancel, and whose task is killed and started anew: a call
 *  is executed at most once, by one process, and ends in any case; one that is answered was executed. */
import { expect, it } from 'vitest';
import { sleep, systemClock } from '../../base/clock.ts';
import { isShoalError } from '../../base/errors.ts';
import { seededRandom, type Random } from '../../base/random.ts';
import type { Connection, Fabric, FabricAddress } from '../../fabric/fabric.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { FabricCarrier } from './fabric-carrier.ts';
import type { Pieces, RpcCall, RpcLink } from './rpc.ts';

const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString();
const turns = async (count: number): Promise<void> => {
  for (let k = 0; k < count; k++) await new Promise(setImmediate);
};

class World {
  readonly #random: Random;
  readonly #network = new LoopbackNetwork();
  readonly #connections = new Set<Connection & { abort(): void }>();
  readonly #carriers: FabricCarrier[] = [];
  readonly #links: (RpcLink | undefined)[] = [undefined, undefined];
  #task: { readonly fabric: Fabric; readonly url: string; address: FabricAddress | undefined } | undefined;
  #made = 0;
  /** Executions, by body of the call. */
  readonly executions = new Map<string, number>();
  readonly answered: string[] = [];
  readonly failed: string[] = [];
  readonly running: Promise<void>[] = [];

  constructor(random: Random) {
    this.#random = random;
  }

  #carrier(rank: number): { carrier: FabricCarrier; fabric: Fabric } {
    const random = seededRandom(this.#random.integer(2 ** 31));
    const identity = { world: 'w', rank };
    const fabric = this.#network.createFabric({ identity, secret: new Uint8Array(32), clock: systemClock, random });
    const connect = fabric.connect.bind(fabric);
    // Whoever is the task by now has the address.
    fabric.connect = async (address, options) => {
      const connection = (await connect(this.#task?.address ?? address, options)) as Connection & { abort(): void };
      this.#connections.add(connection);
      return connection;
    };
    const carrier = new FabricCarrier({
      fabric,
      clock: systemClock,
      random,
      world: 'w',
      rank,
      reconnectMs: 500,
    });
    this.#carriers.push(carrier);
    return { carrier, fabric };
  }

  /** A killed one says nothing, and nobody reaches it any more. */
  async startTask(): Promise<void> {
    this.breakAll();
    const { carrier, fabric } = this.#carrier(0);
    const listen = fabric.listen.bind(fabric);
    let address: FabricAddress | undefined;
    fabric.listen = async (...args) => (address = await listen(...args));
    const url = await carrier.listen({ handle: (call) => this.#handle(call), callerGone: () => undefined });
    this.#task = { fabric, url: this.#task?.url ?? url, address };
  }

  async #handle({ body, signal }: RpcCall): Promise<Pieces> {
    const name = text(body);
    this.executions.set(name, (this.executions.get(name) ?? 0) + 1);
    for (let k = 0; k < 3 && !signal.aborted; k++) await turns(this.#random.integer(4));
    return [body];
  }

  breakAll(): void {
    for (const connection of this.#connections) connection.abort();
    this.#connections.clear();
  }

  async #linkOf(caller: number): Promise<RpcLink> {
    const known = this.#links[caller];
    if (known !== undefined) return known;
    const link = await this.#carrier(1 + caller).carrier.connect(this.#task!.url, 'the task');
    this.#links[caller] = link;
    void this.#forgetLost(caller, link);
    return link;
  }

  async #forgetLost(caller: number, link: RpcLink): Promise<void> {
    await link.lost;
    if (this.#links[caller] === link) this.#links[caller] = undefined;
  }

  call(): void {
    const name = `call ${this.#made++}.`;
    const abort = new AbortController();
    const run = async (): Promise<void> => {
      try {
        const link = await this.#linkOf(this.#random.integer(2));
        const answer = await link.call(1, [Buffer.from(name)], { signal: abort.signal });
        expect(text(answer)).toBe(name);
        this.answered.push(name);
      } catch (thrown) {
        if (!isShoalError(thrown)) throw thrown;
        expect(['peer-lost', 'aborted', 'closed', 'timeout']).toContain(thrown.code);
        this.failed.push(name);
      }
    };
    this.running.push(run());
    if (this.#random.next() < 0.2) void turns(this.#random.integer(8)).then(() => abort.abort());
  }

  async step(): Promise<void> {
    const dice = this.#random.next();
    if (dice < 0.7) this.call();
    else if (dice < 0.85) this.breakAll();
    else if (dice < 0.9) await this.startTask();
    else if (dice < 0.93) await this.#links[this.#random.integer(2)]?.close();
    else await sleep(systemClock, this.#random.integer(20));
    await turns(this.#random.integer(3));
  }

  async end(): Promise<void> {
    await Promise.all(this.running);
    await Promise.all(this.#carriers.map((carrier) => carrier.close()));
  }
}

it('every call ends; it is executed once at most, and what is answered was', { timeout: 120_000 }, async () => {
  let [answered, failed] = [0, 0];
  for (let seed = 1; seed <= Number(process.env['RPC_WORLDS'] ?? 5); seed++) {
    const world = new World(seededRandom(seed));
    await world.startTask();
    for (let k = 0; k < 60; k++) await world.step();
    await world.end();
    for (const [name, times] of world.executions) expect([name, times, seed]).toEqual([name, 1, seed]);
    for (const name of world.answered) expect(world.executions.has(name)).toBe(true);
    expect(world.answered.length + world.failed.length).toBe(world.running.length);
    answered += world.answered.length;
    failed += world.failed.length;
  }
  expect(Math.min(answered, failed)).toBeGreaterThan(20);
});
