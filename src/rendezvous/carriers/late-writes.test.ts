/** A peer that writes where it has said that it will not, after its receiver gave up: over every fabric, what is received later is what was
 *  sent, and the key of a place of its own is gone. */
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { Fabric, FabricOptions } from '../../fabric/fabric.ts';
import { LoopbackNetwork } from '../../fabric/testing/loopback.ts';
import { LibfabricFabric } from '../../fabric/providers/libfabric/libfabric.ts';
import { libfabricUnavailable } from '../../fabric/providers/libfabric/libfabric-devices.ts';
import { ShmFabric, shmUnavailable } from '../../fabric/providers/shm.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';
import { loadNative } from '../../memory/native.ts';
import { createRegionAllocator } from '../../memory/regions/allocator.ts';
import type { ReceiveBuffer } from '../protocol/pooled-memory.ts';
import { fabricPair, type FabricPair } from '../testing/fabric-pair.ts';
import { spanOf, type TensorValue } from '../value/tensor-value.ts';
import { dense, plain } from './conformance.ts';

const regions = createRegionAllocator({ native: loadNative({ enabled: true }) });
const network = new LoopbackNetwork();
const fabrics: readonly (readonly [string, (options: FabricOptions) => Fabric, string | undefined])[] = [
  ['loopback', (options) => network.createFabric(options), undefined],
  ['tcp', (options) => new TcpFabric(options), undefined],
  ['shm', (options) => new ShmFabric({ ...options, regions }), shmUnavailable()],
  ...['tcp;ofi_rxm', 'shm'].map(
    (provider) =>
      [
        `libfabric, ${provider}`,
        (options: FabricOptions) => new LibfabricFabric({ ...options, hostId: 'here', libfabric: { provider } }),
        libfabricUnavailable({ provider }),
      ] as const,
  ),
];

describe.each(fabrics)('late writes over %s', (_, create, reason) => {
  const pairs: FabricPair[] = [];
  afterEach(async () => {
    for (const pair of pairs.splice(0)) await pair.close();
  });

  /** `b` has received `value` as `x` once, asked for it again and given up. @returns the place that it gave up. */
  async function givenUp(value: TensorValue): Promise<{ pair: FabricPair; place: ReceiveBuffer }> {
    const pair = await fabricPair({ create, region: (bytes) => regions.create(bytes) });
    pairs.push(pair);
    (await exchange(pair, 1, value))!.release!();
    const { b } = pair;
    const allocate = vi.spyOn(b.memory, 'allocate');
    const abort = new AbortController();
    const waiting = b.core.beginStep(2).recvAsync(key(pair), { signal: abort.signal });
    await new Promise((resolve) => setImmediate(resolve));
    abort.abort();
    await expect(waiting).rejects.toMatchObject({ code: 'aborted' });
    await vi.waitFor(() => expect(b.tensors.unanswered.here).toBe(0), { timeout: 60_000, interval: 1 });
    return { pair, place: allocate.mock.results[0].value as ReceiveBuffer };
  }

  const key = ({ a, b }: FabricPair): string => a.core.key('x', a.core.self, b.core.self);

  async function exchange(pair: FabricPair, stepId: number, value: TensorValue): Promise<TensorValue | undefined> {
    const { a, b } = pair;
    const received = b.core.beginStep(stepId).recvAsync(key(pair));
    a.core.beginStep(stepId).send(key(pair), value);
    return received;
  }

  const writeLate = ({ a }: FabricPair, { registered, offset, bytes }: ReceiveBuffer): Promise<void> =>
    a.connection.write(spanOf(new Uint8Array(bytes).fill(0xee)), { region: { ...registered, region: undefined } as never, offset });

  it.skipIf(reason !== undefined)(
    `change no tensor that shares their region${reason === undefined ? '' : ` (skipped: ${reason})`}`,
    async () => {
      const { pair, place } = await givenUp(dense(new Float32Array(64)));
      const held: TensorValue[] = [];
      const sent = Array.from({ length: 40 }, (_, k) => dense(new Float32Array(64).fill(k)));
      for (const [k, value] of sent.entries()) {
        held.push((await exchange(pair, 3 + k, value))!);
        await writeLate(pair, place);
      }
      const last = dense(new Float32Array(64).fill(99));
      held.push((await exchange(pair, 100, last))!);
      expect(held.map(plain)).toEqual([...sent, last].map(plain));
    },
  );

  it.skipIf(reason !== undefined)(
    `end the connection where the region was theirs alone${reason === undefined ? '' : ` (skipped: ${reason})`}`,
    async () => {
      const value = dense(new Float32Array(200_000).fill(1));
      const { pair, place } = await givenUp(value);
      const received = (await exchange(pair, 3, value))!;
      const waiting = pair.b.core.beginStep(4).recvAsync(key(pair));
      writeLate(pair, place).catch(() => undefined);
      await expect(waiting).rejects.toMatchObject({ code: 'protocol' });
      expect(new Uint8Array(place.registered.region.buffer, place.offset, 4)).not.toContain(0xee);
      expect((received.data as Float32Array).every((each) => each === 1)).toBe(true);
    },
  );
});
