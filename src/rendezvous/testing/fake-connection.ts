/** Two ends of a connection that deliver when they are told to: every order of events can be played. */
import type { Connection, ConnectionHandlers, RegisteredRegion, RemoteSpan, Span } from '../../fabric/fabric.ts';
import type { ShoalError } from '../../base/errors.ts';
import type { Region } from '../../memory/region.ts';
import { RegionTable } from '../../fabric/region-table.ts';
import { seededRandom } from '../../base/random.ts';

export type Posted =
  | { readonly kind: 'message'; readonly message: Uint8Array }
  | { readonly kind: 'write'; readonly source: Span; readonly target: RemoteSpan; readonly immediate: number | undefined };

export class FakeConnection implements Connection {
  readonly peer;
  readonly description = 'fake';
  readonly regions: RegionTable;
  /** Not delivered yet, in order. */
  readonly posted: (Posted & { resolve(): void; reject(error: ShoalError): void })[] = [];
  other!: FakeConnection;
  handlers!: ConnectionHandlers;
  /** Messages and writes that have left. */
  readonly sent = { messages: 0, writes: 0, immediates: 0 };

  constructor(rank: number) {
    this.peer = { world: 'w', rank: 1 - rank };
    this.regions = new RegionTable({ random: seededRandom(rank + 1) });
  }

  register(region: Region): RegisteredRegion {
    return this.regions.register(region);
  }

  setHandlers(handlers: ConnectionHandlers): void {
    this.handlers = handlers;
  }

  send(message: Uint8Array): Promise<void> {
    this.sent.messages++;
    return new Promise((resolve, reject) => this.posted.push({ kind: 'message', message: Uint8Array.from(message), resolve, reject }));
  }

  write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    if (source.bytes > 0) this.sent.writes++;
    if (immediate !== undefined) this.sent.immediates++;
    return new Promise((resolve, reject) => this.posted.push({ kind: 'write', source, target, immediate, resolve, reject }));
  }

  map(): never {
    throw new Error('not here');
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** Delivers the oldest of what was posted here. @returns false when there is none. */
  deliver(): boolean {
    const next = this.posted.shift();
    if (next === undefined) return false;
    next.resolve();
    if (next.kind === 'message') this.other.handlers.onMessage(next.message);
    else {
      const { source, target, immediate } = next;
      if (source.bytes > 0)
        this.other.regions
          .locate(target.region.rkey, target.offset, source.bytes)
          .set(new Uint8Array(source.region.buffer, source.offset, source.bytes));
      if (immediate !== undefined) this.other.handlers.onImmediate(immediate);
    }
    return true;
  }

  lose(error: ShoalError): void {
    this.handlers.onClose(error);
    for (const { reject } of this.posted.splice(0)) reject(error);
  }
}

export function fakeConnections(): [FakeConnection, FakeConnection] {
  const [a, b] = [new FakeConnection(0), new FakeConnection(1)];
  a.other = b;
  b.other = a;
  return [a, b];
}
