/** Ranks that stop while others join: whom these name, whichever of them gives up first. */
import { describe, expect, it } from 'vitest';
import { ShoalError } from '../base/errors.ts';
import { countFabric } from '../fabric/testing/hooks/count.ts';
import { ForwardingConnection, decorateFabric } from '../fabric/testing/hooks/decorate.ts';
import type { Fabric } from '../fabric/fabric.ts';
import { dialsMax } from './comm/bootstrap.ts';
import type { Store } from '../store/store.ts';
import { joinRanks, startRanks, type InProcessOptions } from './testing/in-process-world.ts';

/** One that ends, and one that goes on. */
const [stopped, size] = [2, 4];

/** A store whose calls give what `instead` gives for their first argument, if anything. */
function forwarding(store: Store, instead: (key: unknown) => Promise<never> | undefined): Store {
  return new Proxy(store, {
    get: (target, name) => {
      const method: unknown = Reflect.get(target, name);
      if (typeof method !== 'function') return method;
      return (...args: unknown[]): unknown => instead(args[0]) ?? Reflect.apply(method, target, args);
    },
  });
}

class Stop {
  now = false;

  /** Calls of the store that find this rank stopped are never answered; from `key` on it is. */
  store(store: Store, key: string): Store {
    return forwarding(store, (named) => {
      this.now ||= named === key || (Array.isArray(named) && named.includes(key));
      return this.now ? new Promise(() => undefined) : undefined;
    });
  }

  /** A stopped process dials nobody, answers nobody, and says nothing. */
  fabric(fabric: Fabric): Fabric {
    const silent = (): boolean => this.now;
    class SilentConnection extends ForwardingConnection {
      override send(message: Uint8Array): Promise<void> {
        return silent() ? Promise.resolve() : super.send(message);
      }
    }
    const decorated = decorateFabric(fabric, (connection) => new SilentConnection(connection));
    const connect: Fabric['connect'] = (address, options) =>
      this.now ? new Promise(() => undefined) : decorated.connect(address, options);
    return { ...forwardingFabric(decorated), connect };
  }
}

function forwardingFabric(fabric: Fabric): Fabric {
  return {
    name: fabric.name,
    capabilities: fabric.capabilities,
    register: (region) => fabric.register(region),
    listen: (onConnection) => fabric.listen(onConnection),
    connect: (address, options) => fabric.connect(address, options),
    close: () => fabric.close(),
  };
}

/** The errors that the ranks that were not stopped are told, when the other one stops at its first use of `key`. */
async function join(key: string, options: InProcessOptions = {}): Promise<unknown[]> {
  const stop = new Stop();
  const joining = joinRanks(size, {
    ...options,
    joinTimeoutMs: 400,
    wrapStore: (store, rank) => (rank === stopped ? stop.store(store, key) : store),
    wrap: (fabric, rank) => (rank === stopped ? stop.fabric(fabric) : fabric),
  });
  void joining[stopped].catch(() => undefined);
  const others = joining.filter((_, rank) => rank !== stopped);
  return Promise.all(
    others.map((rank) =>
      rank.then(
        () => 'joined',
        (error: unknown) => error,
      ),
    ),
  );
}

describe('a rank that is stopped while others join is named by all of them', () => {
  it.each([
    { when: 'before it has said where it is', key: 'info/2' },
    { when: 'before it has dialled, so that only some have a link to it', key: 'info/3' },
    { when: 'before it has said what links it has', key: 'links/2' },
    { when: 'before it has opened the group', key: 'connected/2' },
  ])('$when', async ({ key }) => {
    for (const told of await join(key)) expect(told).toMatchObject({ code: 'timeout', peer: stopped });
  });

  it('before it has measured its links to other hosts', async () => {
    const options = { hostIds: ['a', 'a', 'b', 'b'], settings: { calibration: 'measure' } } as const;
    for (const told of await join('rates/2', options)) expect(told).toMatchObject({ code: 'timeout', peer: stopped });
  });
});

describe('a rank that gives up', () => {
  it('for reasons of its own is named by the others', async () => {
    const reason = 'no descriptor is left';
    const failing = (store: Store): Store =>
      forwarding(store, (key) => (key === 'links/1' ? Promise.reject(new ShoalError('system', reason)) : undefined));
    const joining = joinRanks(3, { wrapStore: (store, rank) => (rank === 1 ? failing(store) : store) });
    const told = await Promise.all(joining.map((rank) => rank.catch((error: unknown) => error)));
    expect(told[1]).toMatchObject({ code: 'system', message: reason });
    const repeated = { code: 'peer-lost', peer: 1, message: `rank 1 gave up joining: ${reason}` };
    for (const rank of [0, 2]) expect(told[rank]).toMatchObject(repeated);
  });
});

describe('many ranks', () => {
  it('send each of the others as many messages as few do', async () => {
    /** The most of a rank, from joining to leaving. */
    const messages = async (n: number): Promise<number> => {
      const counted: ReturnType<typeof countFabric>[] = [];
      const wrap = (fabric: Fabric, rank: number): Fabric => (counted[rank] = countFabric(fabric)).fabric;
      await (await startRanks(n, { wrap }))[Symbol.asyncDispose]();
      return Math.max(...counted.map(({ counts }) => counts.sent.messages));
    };
    const [few, many] = [await messages(4), await messages(32)];
    // Rank 0 also answers everyone's question for the time.
    expect(many / 31).toBeLessThanOrEqual(few / 3);
  });

  it('dial a few of the others at a time, and nobody is warned', async () => {
    const dials = { now: 0, most: 0 };
    const counting = (fabric: Fabric): Fabric => {
      const connect: Fabric['connect'] = async (...args) => {
        dials.most = Math.max(dials.most, ++dials.now);
        try {
          return await fabric.connect(...args);
        } finally {
          dials.now--;
        }
      };
      return { ...forwardingFabric(fabric), connect };
    };
    const warnings: Error[] = [];
    const onWarning = (warning: Error): void => void warnings.push(warning);
    process.on('warning', onWarning);
    try {
      await using world = await startRanks(24, { wrap: (fabric, rank) => (rank === 23 ? counting(fabric) : fabric) });
      expect(world.groups.map((group) => group.size)).toEqual(Array.from({ length: 24 }, () => 24));
      expect(dials.most).toBe(dialsMax);
      expect(warnings).toEqual([]);
    } finally {
      process.off('warning', onWarning);
    }
  });
});
