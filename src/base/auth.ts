/** Mutual authentication of two ends of a byte stream by the job's secret, and their agreement on encryption. Pure: bytes in, bytes or a
 *  verdict out; it must not know sockets or time.
 *
 *    dialer                                   acceptor
 *      HELLO  rank, nonce, world …  ────────▶   checks version, purpose, world, ranks, encryption
 *      checks the same              ◀────────   HELLO  rank, nonce, world …
 *      PROOF                        ────────▶   checks; a stranger never receives a proof from us
 *      checks                       ◀────────   PROOF
 *                                               or, instead of any answer, REFUSAL code, text
 *
 *  Between hosts (secure/link.ts) the two PROOFs are the two messages of Noise NNpsk0 (secure/noise.ts), with both HELLOs as the prologue
 *  and HKDF-SHA256 of the secret as the pre-shared key; its keys encrypt all that follows (secure/records.ts). Within a host a PROOF is
 *  HMAC-SHA256 over both HELLOs, challenge and response (RFC 2104; as in ISO/IEC 9798-4), and what follows is plain.
 *
 *  Frames have fixed sizes, so one end holds at most 136 bytes of the other before it is authenticated:
 *
 *    byte  0      5        6      7       8            24           56      60             64           68      100       101     117 120
 *    HELLO │SHOAL │version │type 1│role   │purpose (16)│SHA-256 of  │rank   │expected peer │world size  │nonce  │demands  │host   │0  │
 *          │      │        │      │       │ASCII, 0-pad│world (32)  │u32 LE │u32, ~0 any   │u32, 0 any  │(32)   │1; AES 2 │(16)   │   │
 *    byte  0      5        6      7       8                                                                             56
 *    PROOF │SHOAL │version │type 2│role   │Noise message (48), or HMAC(secret, label ‖ role ‖ both HELLOs) (32), 0-padded │
 *    byte  0      5        6      7       8                                136
 *    REFUSAL SHOAL│version │type 3│code   │text, 0-padded (128)             │      the same in every version
 *
 *  role: 0 dialer, 1 acceptor; it is under the proof, so a proof cannot be reflected to its maker. */
import { createHash, createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import { assert } from './assert.ts';
import { Layout } from './bytes.ts';
import { ShoalError, type ErrorCode } from './errors.ts';
import type { Random } from './random.ts';
import { aeadOf, hostDigestBytes, isWithinHost, type LinkClaim } from './secure/link.ts';
import { keyBytes, NoiseHandshake, tagBytes, type Aead } from './secure/noise.ts';
import type { LinkKeys } from './secure/records.ts';

const magic = Buffer.from('SHOAL', 'latin1');
const version = 2;
const type = { hello: 1, proof: 2, refusal: 3 } as const;
const format = 'a handshake frame';
const purposeBytes = 16;
const refusalTextBytes = 128;
/** `last`: the role, or the code of a refusal. */
const prefix = { magic: magic.length, version: 'u8', type: 'u8', last: 'u8' } as const;
const prefixLayout = new Layout(format, prefix);
const helloLayout = new Layout(format, {
  ...prefix,
  purpose: purposeBytes,
  world: 32,
  rank: 'u32',
  expectedPeer: 'u32',
  worldSize: 'u32',
  nonce: 32,
  encryption: 'u8',
  host: hostDigestBytes,
  zero: 3,
});
const proofLayout = new Layout(format, { ...prefix, proof: keyBytes + tagBytes });
const refusalLayout = new Layout(format, { ...prefix, text: refusalTextBytes });
const anyRank = 0xffffffff;
const label = 'shoal-handshake-2';
/** Bits of `encryption`. */
const flags = { demands: 1, aes: 2 } as const;
/** Codes of errors, each at its number on the wire. */
const refusalCodes: readonly ErrorCode[] = ['auth', 'config', 'aborted', 'unsupported'];
/** Roles, each at its number on the wire. */
const roles = ['dialer', 'acceptor'] as const;

/** Number of server 0; parties without a rank have numbers beyond all ranks. */
export const serverNumber = 0x2000_0000;
/** Number of the launcher of node 0. */
export const launcherNumber = 0x4000_0000;

/** Most bytes that one end sends before it is authenticated. */
export const handshakeBytesMax: number = helloLayout.bytes + proofLayout.bytes;

export interface HandshakeOptions {
  /** The dialer speaks first. */
  readonly role: (typeof roles)[number];
  /** The job's secret; never sent. An empty secret proves nothing. */
  readonly secret: Uint8Array;
  /** Purpose of the connection, ASCII, at most 16 characters; both ends must agree: a proof for one service is worthless at another. */
  readonly purpose: string;
  /** World name; both ends must agree. */
  readonly world: string;
  /** World size; both ends must agree if both give one. */
  readonly worldSize?: number;
  /** Number of this end: its rank, or `serverNumber` or `launcherNumber` plus its index. */
  readonly rank: number;
  /** Rank that is accepted; every other one is refused. Default: any. */
  readonly expectedPeer?: number;
  readonly random: Random;
  /** This end's word on encryption. */
  readonly link: LinkClaim;
  /** `impossible`: what follows the handshake cannot be encrypted, so a connection that has to be is refused. Default `possible`. */
  readonly encryption?: 'possible' | 'impossible';
}

export interface HandshakeStep {
  /** Bytes to send now. */
  readonly send?: Uint8Array;
  /** Present once, when the peer is authenticated; `rest` are the bytes that followed its last frame. */
  readonly done?: {
    readonly peerRank: number;
    readonly rest: Uint8Array;
    /** Undefined: what follows is not encrypted. */ readonly keys?: LinkKeys;
  };
}

/** One end of one handshake.
 *
 *  `push` throws `ShoalError`: `auth` (the peer does not know the secret), `protocol` (not our bytes), `config` (version,
 *  purpose, world, world size or rank differ; the message says which), `unsupported`, or the error of the peer's refusal. After a throw the
 *  caller sends `refusal`, when there is one, and closes. */
export class Handshake {
  readonly #options: HandshakeOptions;
  readonly #ownHello: Uint8Array;
  readonly #received = Buffer.alloc(refusalLayout.bytes);
  #receivedBytes = 0;
  #peerHello: Uint8Array | undefined;
  #phase: 'hello' | 'proof' | 'done' | 'failed' = 'hello';
  #refusal: Uint8Array | undefined;
  /** Undefined: what follows is not encrypted. */
  #noise: NoiseHandshake | undefined;
  #aead: Aead = 'aes-256-gcm';

  constructor(options: HandshakeOptions) {
    const { rank, expectedPeer, worldSize = 0, purpose, link } = options;
    assert(/^[\x21-\x7e]{1,16}$/.test(purpose), () => `purpose '${purpose}' must be 1 to ${purposeBytes} ASCII characters`);
    assert(isRank(rank) && (expectedPeer === undefined || isRank(expectedPeer)), () => `ranks ${rank}, ${expectedPeer} must be uint32`);
    this.#options = options;
    this.#ownHello = helloLayout.encode({
      ...prefixOf(type.hello, options.role),
      purpose: Buffer.from(purpose, 'latin1'),
      world: hashOf(options.world),
      rank,
      expectedPeer: expectedPeer ?? anyRank,
      worldSize,
      nonce: options.random.bytes(32),
      encryption: (link.demands ? flags.demands : 0) + (link.hasAes ? flags.aes : 0),
      host: link.host,
    });
  }

  /** Bytes to send before anything arrives: the dialer's HELLO; undefined for the acceptor. */
  start(): Uint8Array | undefined {
    return this.#options.role === 'dialer' ? this.#ownHello : undefined;
  }

  /** Least number of bytes that the next step needs. Reading no more than this leaves `rest` empty. */
  get bytesWanted(): number {
    if (this.#phase === 'done' || this.#phase === 'failed') return 0;
    return this.#frameBytes() - this.#receivedBytes;
  }

  /** Bytes to send before closing, after `push` has thrown. Undefined when the peer is a stranger or refused us itself. */
  get refusal(): Uint8Array | undefined {
    return this.#refusal;
  }

  /** A refusal for reasons of the caller's own (`aborted`), for instance too many connections. */
  refuse(text: string): Uint8Array {
    this.#phase = 'failed';
    return refusalFrame('aborted', text);
  }

  push(bytes: Uint8Array): HandshakeStep {
    assert(this.#phase === 'hello' || this.#phase === 'proof', () => `handshake is over (${this.#phase})`);
    const sends: Uint8Array[] = [];
    let at = 0;
    try {
      while (at < bytes.length) {
        const taken = Math.min(this.#frameBytes() - this.#receivedBytes, bytes.length - at);
        this.#received.set(bytes.subarray(at, at + taken), this.#receivedBytes);
        this.#receivedBytes += taken;
        at += taken;
        this.#checkPrefix();
        if (this.#receivedBytes < this.#frameBytes()) continue;
        const send = this.#onFrame(Buffer.from(this.#received.subarray(0, this.#receivedBytes)));
        this.#receivedBytes = 0;
        if (send !== undefined) sends.push(send);
        if (this.#isDone()) {
          const { rank } = helloLayout.decode(this.#peerHello!);
          return { ...joined(sends), done: { peerRank: rank, rest: bytes.subarray(at), ...this.#keys() } };
        }
      }
    } catch (error) {
      this.#phase = 'failed';
      throw error;
    }
    return joined(sends);
  }

  #isDone(): boolean {
    return this.#phase === 'done';
  }

  /** Size of the frame being received; until its type is known, the size of the expected one: a refusal is longer than any. */
  #frameBytes(): number {
    const isKnown = this.#receivedBytes >= prefixLayout.bytes;
    const received = isKnown ? prefixLayout.decode(this.#received).type : this.#expected;
    return (received === type.hello ? helloLayout : received === type.proof ? proofLayout : refusalLayout).bytes;
  }

  get #expected(): number {
    return this.#phase === 'hello' ? type.hello : type.proof;
  }

  /** Refuses strangers at their first wrong byte. */
  #checkPrefix(): void {
    const got = this.#received.subarray(0, this.#receivedBytes);
    const checked = Math.min(got.length, magic.length);
    if (magic.compare(got, 0, checked, 0, checked) !== 0) throw this.#stranger('its first bytes are not a Shoal handshake');
    if (got.length < prefixLayout.bytes) return;
    const { version: spoken, type: kind, last } = prefixLayout.decode(got);
    if (kind === type.refusal && this.#options.role === 'dialer') return;
    if (spoken !== version) {
      throw this.#refused('config', `handshake version ${version} here, ${spoken} at the peer; run the same Shoal everywhere`);
    }
    if (kind !== this.#expected) throw this.#stranger(`handshake frame type ${kind} where ${this.#expected} was expected`);
    if (last !== 1 - roles.indexOf(this.#options.role)) throw this.#stranger('it claims our own role in the handshake');
  }

  #onFrame(frame: Uint8Array): Uint8Array | undefined {
    if (prefixLayout.decode(frame).type === type.refusal) throw this.#readRefusal(frame);
    if (this.#phase === 'hello') {
      this.#checkHello(frame);
      this.#peerHello = frame;
      this.#phase = 'proof';
      this.#agree();
      return this.#options.role === 'acceptor' ? this.#ownHello : this.#proofFrame();
    }
    if (!this.#isProven(proofLayout.decode(frame).proof)) {
      const { rank: peer } = helloLayout.decode(this.#peerHello!);
      throw this.#refused(
        'auth',
        `${partyName(this.#options.rank)} and its peer, which says it is ${partyName(peer)}, have different secrets for ${this.#options.purpose}`,
        peer,
      );
    }
    this.#phase = 'done';
    return this.#options.role === 'acceptor' ? this.#proofFrame() : undefined;
  }

  #checkHello(hello: Uint8Array): void {
    const { rank, expectedPeer, purpose, worldSize = 0, world } = this.#options;
    const own = helloLayout.decode(this.#ownHello);
    const { rank: peer, expectedPeer: wanted, worldSize: peerWorldSize, ...theirs } = helloLayout.decode(hello);
    if (Buffer.compare(theirs.purpose, own.purpose) !== 0) {
      throw this.#refused(
        'config',
        `${partyName(rank)} speaks '${purpose}' here, ${partyName(peer)} speaks '${printable(theirs.purpose)}'; it dialled the wrong port`,
        peer,
      );
    }
    if (Buffer.compare(theirs.world, own.world) !== 0) {
      throw this.#refused(
        'config',
        `${partyName(peer)} belongs to another world than ${partyName(rank)} of world '${world}'; check the job's name and address`,
        peer,
      );
    }
    if (worldSize !== 0 && peerWorldSize !== 0 && worldSize !== peerWorldSize) {
      throw this.#refused(
        'config',
        `world size is ${worldSize} at ${partyName(rank)} but ${peerWorldSize} at ${partyName(peer)}; start every rank with the same`,
        peer,
      );
    }
    if (expectedPeer !== undefined && peer !== expectedPeer) {
      throw this.#refused('config', `${partyName(rank)} expected ${partyName(expectedPeer)} but reached ${partyName(peer)}`, peer);
    }
    if (wanted !== anyRank && wanted !== rank) {
      throw this.#refused('config', `${partyName(peer)} expected ${partyName(wanted)} but reached ${partyName(rank)}`, peer);
    }
  }

  /** Both ends have said whether they demand encryption, and where they are. */
  #agree(): void {
    const { rank, purpose, link, secret, random, encryption } = this.#options;
    const { rank: peer, encryption: bits, host } = helloLayout.decode(this.#peerHello!);
    const theirs = { demands: (bits & flags.demands) !== 0, hasAes: (bits & flags.aes) !== 0, host };
    if (isWithinHost(link, theirs)) return;
    if (link.demands !== theirs.demands) {
      const [on, off] = link.demands ? [rank, peer] : [peer, rank];
      const message = `${partyName(on)} demands encryption and ${partyName(off)} has SHOAL_ENCRYPTION=off; set the same everywhere`;
      throw this.#refused('config', message, peer);
    }
    if (!link.demands) return;
    if (encryption === 'impossible') {
      const message = `${purpose} cannot be encrypted, and leaves the host; set SHOAL_ENCRYPTION=off to allow that`;
      throw this.#refused('unsupported', message, peer);
    }
    this.#aead = aeadOf(link, theirs);
    const psk = new Uint8Array(hkdfSync('sha256', secret, new Uint8Array(0), label, keyBytes));
    const prologue = Buffer.concat([Buffer.from(label), ...this.#hellos]);
    this.#noise = new NoiseHandshake({ aead: this.#aead, prologue, psk, ephemeral: random.bytes(keyBytes) });
  }

  #isProven(proof: Uint8Array): boolean {
    if (this.#noise) return this.#noise.read(proof) !== undefined;
    const padded = new Uint8Array(proofLayout.bytes - prefixLayout.bytes);
    padded.set(this.#proofOf(this.#options.role === 'dialer' ? 'acceptor' : 'dialer'));
    return timingSafeEqual(proof, padded);
  }

  #keys(): { readonly keys?: LinkKeys } {
    if (!this.#noise) return {};
    const [fromDialer, fromAcceptor] = this.#noise.split();
    const [send, receive] = this.#options.role === 'dialer' ? [fromDialer, fromAcceptor] : [fromAcceptor, fromDialer];
    return { keys: { aead: this.#aead, send, receive } };
  }

  /** The dialer's HELLO, then the acceptor's. */
  get #hellos(): readonly Uint8Array[] {
    return this.#options.role === 'dialer' ? [this.#ownHello, this.#peerHello!] : [this.#peerHello!, this.#ownHello];
  }

  #proofFrame(): Uint8Array {
    const { role } = this.#options;
    return proofLayout.encode({ ...prefixOf(type.proof, role), proof: this.#noise?.write() ?? this.#proofOf(role) });
  }

  #proofOf(role: HandshakeOptions['role']): Buffer {
    const proof = createHmac('sha256', this.#options.secret)
      .update(label)
      .update(Uint8Array.of(roles.indexOf(role)));
    for (const hello of this.#hellos) proof.update(hello);
    return proof.digest();
  }

  #readRefusal(frame: Uint8Array): ShoalError {
    const { last, text } = refusalLayout.decode(frame);
    const code = refusalCodes[last] ?? 'protocol';
    const peer = this.#options.expectedPeer;
    const who = peer === undefined ? 'the peer' : partyName(peer);
    return new ShoalError(code, `${who} refused ${partyName(this.#options.rank)}: ${printable(text)}`, this.#fields(peer));
  }

  #refused(code: 'auth' | 'config' | 'unsupported', text: string, peer?: number): ShoalError {
    this.#refusal = refusalFrame(code, text);
    return new ShoalError(code, text, this.#fields(peer));
  }

  #stranger(text: string): ShoalError {
    const message = `handshake of ${partyName(this.#options.rank)} for ${this.#options.purpose} with a stranger: ${text}`;
    return new ShoalError('protocol', message, this.#fields());
  }

  /** Fields of an error; only numbers of ranks are given. */
  #fields(peer?: number): { rank?: number; peer?: number; operation: string } {
    const { rank, purpose } = this.#options;
    return {
      ...(rank < serverNumber && { rank }),
      ...(peer !== undefined && peer < serverNumber && { peer }),
      operation: `handshake ${purpose}`,
    };
  }
}

/** The name that was hashed last: a rank meets every other one of its world. */
const hashed = { world: '', hash: createHash('sha256').digest() };

function hashOf(world: string): Buffer {
  if (hashed.world !== world) Object.assign(hashed, { world, hash: createHash('sha256').update(world, 'utf8').digest() });
  return hashed.hash;
}

/** Name of the party with this number: `rank 3`, `server 2`, `the launcher of node 1`. */
export function partyName(number: number): string {
  if (number < serverNumber) return `rank ${number}`;
  return number < launcherNumber ? `server ${number - serverNumber}` : `the launcher of node ${number - launcherNumber}`;
}

function isRank(value: number): boolean {
  return Number.isInteger(value) && value >= 0 && value < anyRank;
}

function prefixOf(kind: number, role: HandshakeOptions['role']): { magic: Buffer; version: number; type: number; last: number } {
  return { magic, version, type: kind, last: roles.indexOf(role) };
}

function refusalFrame(code: ErrorCode, text: string): Uint8Array {
  const cut = Buffer.from(text, 'latin1').subarray(0, refusalTextBytes);
  return refusalLayout.encode({ magic, version, type: type.refusal, last: refusalCodes.indexOf(code), text: cut });
}

/** Text from outside: up to its first zero, printable ASCII only. */
function printable(bytes: Uint8Array): string {
  const text = Buffer.from(bytes).toString('latin1');
  return text.replace(/\0[^]*/, '').replace(/[^\x20-\x7e]/g, '?');
}

function joined(sends: readonly Uint8Array[]): { send?: Uint8Array } {
  return sends.length === 0 ? {} : { send: sends.length === 1 ? sends[0] : Buffer.concat(sends) };
}
