/** Two ranks on hosts of their own, and a man in the middle of their connection, who has all that the network sees. */
import net from 'node:net';
import { describe, expect, it, onTestFinished } from 'vitest';
import { ShoalError } from '../../base/errors.ts';
import { seededRandom } from '../../base/random.ts';
import { defaultSettings } from '../../base/settings/settings.ts';
import { UnhurriedClock } from '../../base/testing/unhurried-clock.ts';
import { loadNative } from '../../memory/native.ts';
import { recordCiphers } from '../../memory/native-records.ts';
import type { FabricAddress } from '../fabric.ts';
import { parseCandidate } from '../stream/candidates.ts';
import { threadRegion } from '../testing/regions.ts';
import { TcpFabric } from './tcp.ts';

const clock = new UnhurriedClock();
const secret = Buffer.from('a secret that nobody on the way may see');
const tensorBytes = 5000;
const limitMs = 20_000;

/** A change that the man in the middle makes to the bytes of one direction, from `at` on. */
interface Attack {
  readonly from: 'dialer' | 'listener';
  readonly kind: 'flip' | 'drop' | 'repeat' | 'swap' | 'cut';
  readonly at: number;
}

class ManInTheMiddle {
  readonly seen: Buffer[] = [];
  readonly #server: net.Server;
  readonly #sockets: net.Socket[] = [];

  constructor(address: FabricAddress, attack?: Attack) {
    const target = parseCandidate('tcp', address.candidates[0]);
    this.#server = net.createServer((near) => {
      const far = net.connect(target);
      this.#sockets.push(near, far);
      this.#pass(near, far, attack?.from === 'dialer' ? attack : undefined);
      this.#pass(far, near, attack?.from === 'listener' ? attack : undefined);
    });
  }

  async listen(): Promise<FabricAddress> {
    await new Promise<void>((resolve) => void this.#server.listen(0, '127.0.0.1', resolve));
    return { provider: 'tcp', candidates: [`tcp://127.0.0.1:${(this.#server.address() as net.AddressInfo).port}`] };
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #pass(from: net.Socket, to: net.Socket, attack: Attack | undefined): void {
    let passed = 0;
    from.on('data', (chunk: Buffer) => {
      this.seen.push(chunk);
      const at = attack === undefined ? -1 : attack.at - passed;
      passed += chunk.length;
      if (attack === undefined || at < 0 || at >= chunk.length) return void to.write(chunk);
      to.write(attacked(chunk, at, attack.kind));
      if (attack.kind === 'cut') for (const socket of [to, from]) socket.end();
    });
    from.on('error', () => to.destroy()).on('close', () => to.destroy());
  }
}

function attacked(chunk: Buffer, at: number, kind: Attack['kind']): Buffer {
  const [before, byte, after] = [chunk.subarray(0, at), chunk.subarray(at, at + 1), chunk.subarray(at + 1)];
  switch (kind) {
    case 'flip':
      return Buffer.concat([before, Buffer.of(byte[0] ^ 1), after]);
    case 'drop':
      return Buffer.concat([before, after]);
    case 'repeat':
      return Buffer.concat([before, byte, byte, after]);
    case 'swap':
      return Buffer.concat([before, after.subarray(0, 1), byte, after.subarray(1)]);
    case 'cut':
      return before;
  }
}

interface Outcome {
  /** The tensor as the listener has it once it was told so; undefined: it was not. */
  readonly received: Buffer | undefined;
  readonly errors: readonly (ShoalError | undefined)[];
  readonly seen: Buffer;
  readonly tensor: Buffer;
}

/** Writes a tensor through the man in the middle. */
async function writeThrough(attack?: Attack): Promise<Outcome> {
  const [a, b] = [0, 1].map((rank) => {
    const settings = { ...defaultSettings, hostId: `host ${rank}` };
    const ciphers = recordCiphers(loadNative({ enabled: true }));
    return new TcpFabric({ identity: { world: 'w', rank }, secret, clock, random: seededRandom(rank + 1), settings, ciphers });
  });
  const source = threadRegion(tensorBytes);
  const tensor = Buffer.from(source.buffer);
  tensor.set(seededRandom(3).bytes(tensorBytes));
  const target = threadRegion(tensorBytes);
  const region = b.register(target);
  const errors: (ShoalError | undefined)[] = [];
  let received: Buffer | undefined;
  let onEnd: () => void;
  const ended = new Promise<void>((resolve) => (onEnd = resolve));
  const address = await b.listen((connection) => {
    connection.setHandlers({
      onMessage: () => undefined,
      onImmediate: () => {
        received = Buffer.from(Buffer.from(target.buffer));
        onEnd();
      },
      onClose: (error) => {
        errors.push(error);
        onEnd();
      },
    });
  });
  const man = new ManInTheMiddle(address, attack);
  onTestFinished(() => man.close());
  try {
    const connection = await a.connect(await man.listen(), { peer: { world: 'w', rank: 1 }, timeoutMs: attack ? 500 : limitMs });
    connection.setHandlers({
      onMessage: () => undefined,
      onImmediate: () => undefined,
      onClose: (error) => {
        errors.push(error);
        onEnd();
      },
    });
    await connection
      .write({ region: source, offset: 0, bytes: tensorBytes }, { region, offset: 0 }, 1)
      .catch((error: unknown) => void errors.push(ShoalError.from(error)));
    // More than a record has at most: one that is longer than its bytes is full then, with the wrong ones.
    for (let k = 0; k < 10; k++) connection.send(Buffer.alloc(8192)).catch(() => undefined);
    await ended;
  } catch (error) {
    errors.push(ShoalError.from(error));
  }
  man.close();
  await Promise.all([a.close(), b.close()]);
  return { received, errors, seen: Buffer.concat(man.seen), tensor };
}

const handshakeBytes = 120 + 56;
/** In both frames of the handshake, in the records of `open` and of the write's header, and in the tensor's. */
const offsets = [
  5,
  60,
  101,
  130,
  170,
  ...[0, 1, 20, 40, 49].flatMap((at) => [handshakeBytes + at, handshakeBytes + 50 + at]),
  277,
  500,
  5000,
];

describe('an encrypted link', () => {
  it('shows the network neither the tensor nor the secret', async () => {
    const { received, seen, tensor } = await writeThrough();
    expect(received?.equals(tensor)).toBe(true);
    expect(seen.length).toBeGreaterThan(tensorBytes);
    const runsOf = (bytes: Buffer): string[] => Array.from({ length: bytes.length - 7 }, (_, at) => bytes.toString('latin1', at, at + 8));
    const seenRuns = new Set(runsOf(seen));
    expect(runsOf(tensor).filter((run) => seenRuns.has(run))).toEqual([]);
    expect(seen.includes(secret)).toBe(false);
    expect(seen.includes(secret.subarray(0, 8))).toBe(false);
  });

  it.each(['flip', 'drop', 'repeat', 'swap', 'cut'] as const)(
    'a man in the middle who can %s bytes gives nobody a wrong result',
    { timeout: 300_000 },
    async (kind) => {
      for (const at of offsets) {
        for (const from of ['dialer', 'listener'] as const) {
          if (from === 'listener' && at >= handshakeBytes) continue;
          const { received, errors, tensor } = await writeThrough({ from, kind, at });
          const told = `${kind} at ${at} from the ${from}`;
          if (received !== undefined) expect(received.equals(tensor), told).toBe(true);
          else
            expect(
              errors.some((error) => error !== undefined),
              told,
            ).toBe(true);
        }
      }
    },
  );
});
