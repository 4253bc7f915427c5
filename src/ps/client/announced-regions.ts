/** Regions of this process's memory, as one server knows them over the present connection: announced before the first request with values
 *  in them, and mapped by the server if it can. */
import type { ShoalError } from '../../base/errors.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { SharedResource } from '../../scheduler/arbiter.ts';
import { controlRequest, type ClientRequest } from './client-request.ts';
import type { OwnValues } from '../protocol/value-space.ts';
import { Fields, readControl } from '../protocol/wire-control.ts';
import { KVMessage } from '../protocol/wire.ts';

export class AnnouncedRegions {
  readonly #values: OwnValues;
  readonly #ask: (request: ClientRequest) => void;
  #regions = new Map<number, 'asking' | 'attached' | 'unattached'>();

  /** @param ask sends a request at once. */
  constructor(values: OwnValues, ask: (request: ClientRequest) => void) {
    this.#values = values;
    this.#ask = ask;
  }

  /** Whether the server has mapped the region. */
  isAttached(region: number): boolean {
    return this.#regions.get(region) === 'attached';
  }

  /** Announces those that the server does not know. @param resource what the way to it takes.
   *  @returns true while the server has not said whether it can map them. */
  announce(regions: readonly number[], resource: SharedResource | undefined): boolean {
    const unknown: [number, string, number][] = [];
    let asking = false;
    for (const region of regions) {
      const known = this.#regions.get(region);
      asking ||= known === 'asking';
      if (known !== undefined) continue;
      // A server on another host could only map memory of somebody else there.
      const handle = resource === 'network' ? undefined : this.#values.handleOf(region);
      this.#regions.set(region, handle === undefined ? 'unattached' : 'asking');
      if (handle !== undefined) unknown.push([region, handle, this.#values.bytesOf(region)]);
    }
    if (unknown.length === 0) return asking;
    const asked = this.#regions;
    const finish = (error: ShoalError | undefined, msg: Msg | undefined): void => {
      if (asked !== this.#regions) return;
      const attached = error === undefined && msg !== undefined ? readControl(msg.frames[0], Fields.announced).attached : [];
      for (const [k, [region]] of unknown.entries()) {
        if (asked.has(region)) asked.set(region, attached[k] ? 'attached' : 'unattached');
        // Freed since.
        else if (attached[k]) this.#detach(region);
      }
    };
    this.#ask(controlRequest(KVMessage.announce, { regions: unknown }, finish));
    return true;
  }

  /** A region is about to be freed. @param isUp whether the server can be told. */
  forget(region: number, { isUp }: { readonly isUp: boolean }): void {
    if (isUp && this.isAttached(region)) this.#detach(region);
    this.#regions.delete(region);
  }

  /** The connection is another one: the server knows none. */
  clear(): void {
    this.#regions = new Map();
  }

  #detach(region: number): void {
    this.#ask(controlRequest(KVMessage.detach, { regions: [region] }, () => undefined));
  }
}
