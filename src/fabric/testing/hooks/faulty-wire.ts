/** A proxy between a dialer and a listener of tcp or shm, which damages a frame that the dialer sends.
 *
 *      dialer ── handshake, frames ──▶ proxy ── the same, but for one ──▶ listener        what the listener sends passes as it is */
import net from 'node:net';
import { handshakeBytesMax } from '../../../base/auth.ts';
import { dataViewOf } from '../../../base/bytes.ts';
import type { Random } from '../../../base/random.ts';
import type { FabricAddress } from '../../fabric.ts';
import { parseCandidate } from '../../stream/candidates.ts';
import { decodeHeader, emptyHeader, FrameType, headerBytes } from '../../stream/frame.ts';

export interface FaultyWireOptions {
  readonly random: Random;
  /** `corrupt-header` flips one bit of a frame's header; `truncate` passes half of a frame and then breaks the connection. */
  readonly fault: 'corrupt-header' | 'truncate';
  /** Index of the message or write, among those of a connection, that is damaged; 0 is the first. */
  readonly at: number;
}

export class FaultyWire {
  readonly #options: FaultyWireOptions;
  readonly #servers: net.Server[] = [];

  constructor(options: FaultyWireOptions) {
    this.#options = options;
  }

  /** The way to the listener through this proxy. */
  async to({ provider, candidates }: FabricAddress): Promise<FabricAddress> {
    return { provider, candidates: await Promise.all(candidates.map((candidate) => this.#listen(provider, candidate))) };
  }

  close(): void {
    for (const server of this.#servers) server.close();
  }

  async #listen(provider: string, candidate: string): Promise<string> {
    const [, name = ''] = /^shm:\/\/([\w-]+)/.exec(candidate) ?? [];
    const target = provider === 'shm' ? { path: `\0${name}` } : parseCandidate('tcp', candidate);
    const server = net.createServer({ allowHalfOpen: true, noDelay: true }, (near) => this.#join(near, target));
    this.#servers.push(server);
    const where = provider === 'shm' ? { path: `\0${name}-wire` } : { host: '127.0.0.1', port: 0 };
    await new Promise<void>((resolve) => void server.listen(where, resolve));
    if (provider === 'shm') return candidate.replace(name, `${name}-wire`);
    return `tcp://127.0.0.1:${(server.address() as net.AddressInfo).port}`;
  }

  #join(near: net.Socket, target: net.NetConnectOpts): void {
    const far = net.connect({ ...target, allowHalfOpen: true, noDelay: true });
    const frames = new DamagedFrames(this.#options);
    const breakOff = (): void => void [near, far].map((socket) => socket.destroy());
    for (const socket of [near, far]) socket.on('error', breakOff).on('close', breakOff);
    far.pipe(near);
    near.on('data', (chunk: Buffer) => far.write(frames.pass(chunk), () => frames.isCut && breakOff()));
    near.on('end', () => far.end());
  }
}

/** The bytes of one dialer. */
class DamagedFrames {
  /** Half a frame has passed: nothing follows. */
  isCut = false;
  readonly #options: FaultyWireOptions;
  /** Bytes that pass before the next header. */
  #left = handshakeBytesMax;
  #kept: Buffer = Buffer.alloc(0);
  #frames = 0;
  #cuts = false;

  constructor(options: FaultyWireOptions) {
    this.#options = options;
  }

  pass(chunk: Buffer): Buffer {
    const passed: Buffer[] = [];
    this.#kept = Buffer.concat([this.#kept, chunk]);
    while (this.#kept.length > 0 && !this.isCut) {
      const bytes = this.#left > 0 ? Math.min(this.#left, this.#kept.length) : headerBytes;
      if (this.#kept.length < bytes) break;
      const next = this.#kept.subarray(0, bytes);
      this.#kept = this.#kept.subarray(bytes);
      if (this.#left > 0) this.#left -= bytes;
      else this.#onHeader(next);
      passed.push(next);
      this.isCut = this.#cuts && this.#left === 0;
    }
    return Buffer.concat(passed);
  }

  #onHeader(bytes: Buffer): void {
    const header = emptyHeader();
    decodeHeader(dataViewOf(bytes), 0, header);
    const { type } = header;
    this.#left = type === FrameType.Written ? 0 : header.bytes;
    const counted: readonly number[] = [FrameType.Message, FrameType.Write, FrameType.Written, FrameType.Immediate];
    if (!counted.includes(type) || this.#frames++ !== this.#options.at) return;
    if (this.#options.fault === 'truncate') {
      this.#left >>= 1;
      this.#cuts = true;
      return;
    }
    const bit = this.#options.random.integer(headerBytes * 8);
    bytes[bit >> 3] ^= 1 << (bit & 7);
  }
}
