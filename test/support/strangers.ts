/** Peers that connect and do not know the secret: they send nothing, garbage, or the beginning of something large, in every
 *  protocol that is spoken here. */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import net from 'node:net';
import { Handshake } from '../../src/base/auth.ts';
import { claimOf } from '../../src/base/secure/link.ts';
import { systemRandom } from '../../src/base/random.ts';

const pouredBytes = 32 * 2 ** 20;
const chunk = Buffer.alloc(64 * 1024, 0xa5);

/** First bytes of a stranger, and whether more follows, as much as is taken. */
const openings: readonly { readonly words: () => Uint8Array; readonly pours: boolean }[] = [
  { words: () => Buffer.of(), pours: false },
  { words: () => systemRandom.bytes(5000), pours: true },
  { words: () => hello(), pours: true },
  { words: () => zmtp(0x06), pours: true },
  { words: () => zmtp(0x02), pours: true },
  // The first frame of ZMTP 1.0.
  { words: () => Buffer.concat([Buffer.of(0xff), lengthOf(512 * 2 ** 20), Buffer.of(0)]), pours: true },
  { words: () => hello(), pours: false },
  { words: () => zmtp(0x06).subarray(0, 64), pours: false },
];

/** A HELLO made with a guessed secret. */
function hello(): Uint8Array {
  const options = {
    role: 'dialer',
    secret: Buffer.from('guess'),
    purpose: 'store',
    world: 'guess',
    rank: 1,
    random: systemRandom,
    link: claimOf('local'),
  } as const;
  return new Handshake(options).start()!;
}

/** A greeting (RFC 37) and a frame of 512 MiB. */
function zmtp(flags: number): Buffer {
  const greeting = Buffer.alloc(64);
  greeting[0] = 0xff;
  greeting[9] = 0x7f;
  greeting[10] = 3;
  greeting.write('CURVE', 12, 'latin1');
  return Buffer.concat([greeting, Buffer.of(flags), lengthOf(512 * 2 ** 20)]);
}

function lengthOf(bytes: number): Buffer {
  const length = Buffer.alloc(8);
  length.writeBigUInt64BE(BigInt(bytes));
  return length;
}

export class Strangers implements Disposable {
  readonly #sockets: net.Socket[] = [];
  /** Resolves when the other side has ended every one of them. */
  readonly ended: Promise<unknown>;

  /** @param count number of strangers at each of `addresses`. */
  constructor(addresses: readonly net.NetConnectOpts[], count: number) {
    this.ended = Promise.all(
      addresses.flatMap((address) => Array.from({ length: count }, (_, k) => this.#start(address, openings[k % openings.length]))),
    );
  }

  [Symbol.dispose](): void {
    for (const socket of this.#sockets) socket.destroy();
  }

  #start(address: net.NetConnectOpts, { words, pours }: (typeof openings)[number]): Promise<void> {
    const socket = net.connect(address);
    this.#sockets.push(socket);
    let poured = 0;
    const pour = (): void => {
      while (socket.writable && poured < pouredBytes) {
        poured += chunk.byteLength;
        if (!socket.write(chunk)) return;
      }
    };
    socket.on('connect', () => {
      socket.write(words());
      if (pours) pour();
    });
    if (pours) socket.on('drain', pour);
    socket.on('error', () => undefined).resume();
    return new Promise((resolve) => socket.once('close', () => resolve()));
  }
}

/** Addresses at which a process listens: TCP and Unix sockets. */
export function listenersOf(pid: number): net.NetConnectOpts[] {
  const inodes = socketInodes(pid);
  const tcp = ['tcp', 'tcp6'].flatMap((table) =>
    readFileSync(`/proc/${pid}/net/${table}`, 'utf8')
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .filter(([, , , state, , , , , , inode]) => state === '0A' && inodes.has(inode))
      .map(([, local]) => ({ host: '127.0.0.1', port: Number.parseInt(local.slice(local.lastIndexOf(':') + 1), 16) })),
  );
  const unix = readFileSync(`/proc/${pid}/net/unix`, 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, , , flags, , , inode, path]) => flags === '00010000' && path !== undefined && inodes.has(inode))
    .map((columns) => ({ path: columns[7].replace(/^@/, '\0') }));
  return [...tcp, ...unix];
}

/** Inodes of a process's sockets. */
function socketInodes(pid: number): Set<string> {
  return new Set(
    readdirSync(`/proc/${pid}/fd`).flatMap((fd) => {
      try {
        return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1] ?? [];
      } catch {
        return [];
      }
    }),
  );
}

/** Most memory that a process ever held, bytes; 0 when it has ended. */
export function peakBytes(pid: number): number {
  try {
    return Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) * 1024;
  } catch {
    return 0;
  }
}
