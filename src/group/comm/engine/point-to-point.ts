/** Point-to-point messages of a world. Sender and receiver match by group, rank and tag, in order.
 *
 *    small         sender ── offer + data ──▶ receiver            ◀── taken ──   (credit)
 *    same host     sender ── offer ──▶ receiver loads the data    ◀── taken ──
 *    other host    sender ── offer ──▶  ◀── accept ──  ── one-sided write + immediate ──▶ destination tensor
 *
 *  A receive from anyone has no rank until it is matched: an offer goes to whichever receive it fits was called first, and such a receive
 *  takes the offer that came first.
 *
 *  Large data is never copied on the way except, on one host, from tensor to tensor. It must not know collectives. */
import { must } from '../../../base/assert.ts';
import type { Timer } from '../../../base/clock.ts';
import { ShoalError } from '../../../base/errors.ts';
import { pushTo } from '../../../base/collections/lists.ts';
import { dtypeInfo, dtypes } from '../../../memory/dtype.ts';
import type { Region } from '../../../memory/region.ts';
import { bytesIn, type BoundBuffer } from '../../../call/local-buffers.ts';
import type { PeerLink } from '../links/peer-link.ts';
import type { GroupSpec } from '../../../call/group-spec.ts';
import type { Culprit, Wait } from '../diagnosis/wait-chain.ts';
import {
  decodeAccept,
  decodeNumbered,
  decodeOffer,
  encodeAccept,
  encodeNumbered,
  encodeOffer,
  MessageType,
  transferImmediate,
  type Offer,
} from '../links/wire.ts';
import type { WorldEnvironment } from './environment.ts';
import type { MessageSpan } from '../../../call/collective-spans.ts';

/** Data up to this size travels with its offer. */
const inlineMaxBytes = 8192;
/** Inline messages a sender may have out that the receiver has not taken; beyond, data waits at the sender. */
const inlineCredit = 1024;
/** Offers without a receiver that one peer may leave here. */
const unmatchedMax = 65536;

/** The group as its transfers see it. */
export interface TransferGroup {
  readonly spec: GroupSpec;
  /** Links by group rank; undefined for this rank. */
  readonly links: readonly (PeerLink | undefined)[];
  /** The error with which further calls are refused; undefined while the group works. */
  refusal(): ShoalError | undefined;
  /** The error for messages that cannot come from this group rank (undefined: from anyone) any more; undefined while one can. */
  departed(peer: number | undefined): ShoalError | undefined;
  /** Something of this rank has ended: a message was taken, or given up. */
  settled(): void;
  /** Ends the group. */
  fail(error: ShoalError): void;
  /** Ends the group, unless it turns out that a rank has ended. */
  suspect(thrown: unknown): void;
}

/** A message of a group; without a peer it is a receive from anyone. */
export interface PointToPointRequest extends Omit<MessageSpan, 'direction'> {
  readonly group: TransferGroup;
  readonly buffer: BoundBuffer;
  readonly timeoutMs: number;
  /** @param source group rank of the other side, where it is known. */
  complete(error: ShoalError | undefined, source: number | undefined): void;
}

interface Transfer extends PointToPointRequest {
  readonly direction: 'send' | 'recv';
  /** Key of the queue in which it waits for an offer. */
  readonly key: string;
  /** Its place in the order of calls. */
  readonly ordinal: number;
  readonly sinceMs: number;
  /** Undefined: not matched yet. */
  link: PeerLink | undefined;
  timer: Timer | undefined;
}

/** An offer that arrived before its receiver asked. */
interface Unmatched extends Offer {
  readonly link: PeerLink;
  /** Its place in the order of arrival. */
  readonly ordinal: number;
}

export interface PointToPointWorld {
  readonly env: WorldEnvironment;
  /** Finds who is to blame that this rank waits for ranks of the world. */
  findCulprit(ranks: readonly number[], onFound: (culprit: Culprit) => void): void;
}

export class PointToPoint {
  readonly #world: PointToPointWorld;
  readonly #active = new Set<Transfer>();
  /** Sends whose data has not been taken, by id. */
  readonly #offered = new Map<number, Transfer>();
  /** Accepted data on its way here, by `rank:id`. */
  readonly #landing = new Map<string, Transfer>();
  readonly #receivers = new Map<string, Transfer[]>();
  readonly #unmatched = new Map<string, Unmatched[]>();
  readonly #unmatchedCount: number[] = [];
  readonly #inlineOut: number[] = [];
  readonly #inlineIds = new Set<number>();
  #nextId = 1;
  #nextOrdinal = 0;

  constructor(world: PointToPointWorld) {
    this.#world = world;
  }

  /** @throws ShoalError when the group takes no calls. */
  send(request: PointToPointRequest): void {
    const transfer = this.#start(request, 'send');
    const { buffer, group, tag, dtype, count } = transfer;
    const link = linkOf(transfer);
    const id = this.#nextId;
    this.#nextId = (this.#nextId % 0x7fffffff) + 1;
    const outstanding = this.#inlineOut[link.rank] ?? 0;
    const inline = buffer.bytes <= inlineMaxBytes && outstanding < inlineCredit;
    const gone = inline ? undefined : group.departed(transfer.peer);
    if (gone !== undefined) return this.#end(transfer, gone);
    const payload = inline ? bytesIn(buffer) : new Uint8Array(0);
    this.#offered.set(id, transfer);
    link.post(
      encodeOffer({
        dtypeCode: dtypeInfo(dtype).code,
        group: group.spec.id,
        tag,
        inline,
        id,
        count,
        key: buffer.key,
        offset: buffer.offset,
        payload,
      }),
    );
    if (inline) {
      this.#inlineOut[link.rank] = outstanding + 1;
      this.#inlineIds.add(id);
      this.#end(transfer, undefined);
    }
  }

  /** @throws ShoalError when the group takes no calls. */
  recv(request: PointToPointRequest): void {
    const transfer = this.#start(request, 'recv');
    const offer = this.#takeUnmatched(transfer);
    if (!offer) {
      // A rank has offered before what it sent before it left.
      const gone = transfer.group.departed(transfer.peer);
      if (gone === undefined) pushTo(this.#receivers, transfer.key, transfer);
      else this.#end(transfer, gone);
      return;
    }
    this.#unmatchedCount[offer.link.rank] -= 1;
    this.#match(transfer, offer, offer.link);
  }

  /** An offer, its acceptance, or the news that it was taken. */
  onMessage(link: PeerLink, message: Uint8Array): void {
    if (message[0] === MessageType.Offer) this.#onOffer(link, message);
    else if (message[0] === MessageType.Accept) this.#onAccept(link, message);
    else this.#onTaken(link, message);
  }

  #onOffer(link: PeerLink, message: Uint8Array): void {
    const offer = decodeOffer(message);
    const key = keyOf(offer.group, link.rank, offer.tag);
    const receiver = this.#takeReceiver(key, keyOf(offer.group, undefined, offer.tag));
    if (receiver) {
      this.#match(receiver, offer, link);
      return;
    }
    const waiting = (this.#unmatchedCount[link.rank] ?? 0) + 1;
    if (waiting > unmatchedMax)
      throw new ShoalError('protocol', `rank ${link.rank} left more than ${unmatchedMax} messages that nobody receives`);
    this.#unmatchedCount[link.rank] = waiting;
    pushTo(this.#unmatched, key, { ...offer, payload: Uint8Array.from(offer.payload), link, ordinal: this.#nextOrdinal++ });
  }

  #onAccept(link: PeerLink, message: Uint8Array): void {
    const { id, key, offset } = decodeAccept(message);
    const transfer = this.#takeOffered(link, id);
    if (!transfer) return;
    const { buffer, group } = transfer;
    const target = { region: link.remote(key), offset };
    link.write({ region: buffer.region, offset: buffer.offset, bytes: buffer.bytes }, target, transferImmediate(id)).then(
      () => this.#end(transfer, undefined),
      (thrown: unknown) => {
        const error = ShoalError.from(thrown, 'peer-lost');
        // The end of a rank ends its groups, which tell all others why before any script hears of it.
        if (error.code === 'peer-lost') group.suspect(error);
        else this.#end(transfer, error);
      },
    );
  }

  #onTaken(link: PeerLink, message: Uint8Array): void {
    const id = decodeNumbered(message);
    if (this.#inlineIds.delete(id)) {
      this.#inlineOut[link.rank] -= 1;
      this.#offered.delete(id);
      return;
    }
    const transfer = this.#takeOffered(link, id);
    if (transfer) this.#end(transfer, undefined);
  }

  /** Accepted data has been written. */
  onLanded(link: PeerLink, id: number): void {
    const key = `${link.rank}:${id}`;
    const transfer = this.#landing.get(key);
    if (!transfer) throw new ShoalError('protocol', `transfer ${id} of rank ${link.rank} landed without being accepted`);
    this.#landing.delete(key);
    this.#end(transfer, undefined);
  }

  /** The transfer that this rank has waited for the longest; undefined: there is none. */
  get wait(): Wait | undefined {
    for (const transfer of this.#active) return { text: describeTransfer(transfer), ranks: peersOf(transfer), sinceMs: transfer.sinceMs };
    return undefined;
  }

  /** Whether a message of this rank waits to be taken. */
  isSending(group: TransferGroup): boolean {
    for (const transfer of this.#active) if (transfer.group === group && transfer.direction === 'send') return true;
    return false;
  }

  /** Ends all transfers of a group; with `ranks` only those that none but these world ranks could take part in. */
  abandon(group: TransferGroup, error: ShoalError, ranks?: ReadonlySet<number>): void {
    for (const transfer of [...this.#active]) {
      if (transfer.group === group && (ranks === undefined || peersOf(transfer).every((rank) => ranks.has(rank))))
        this.#end(transfer, error);
    }
  }

  /** All ranks have left the group: what nobody took will not be taken. */
  forget(group: number): void {
    for (const [id, transfer] of this.#offered) {
      if (transfer.group.spec.id !== group) continue;
      this.#offered.delete(id);
      if (this.#inlineIds.delete(id)) this.#inlineOut[linkOf(transfer).rank] -= 1;
    }
    for (const [key, transfer] of this.#landing) if (transfer.group.spec.id === group) this.#landing.delete(key);
    for (const [key, offers] of this.#unmatched) {
      if (offers[0]?.group !== group) continue;
      this.#unmatched.delete(key);
      for (const { link } of offers) this.#unmatchedCount[link.rank] -= 1;
    }
  }

  #start(request: PointToPointRequest, direction: 'send' | 'recv'): Transfer {
    const { group, peer, tag, timeoutMs } = request;
    const refused = group.refusal();
    if (refused) throw refused;
    const link = peer === undefined ? undefined : must(group.links[peer], () => 'messages go to other ranks');
    const transfer: Transfer = {
      ...request,
      direction,
      link,
      key: keyOf(group.spec.id, link?.rank, tag),
      ordinal: this.#nextOrdinal++,
      sinceMs: this.#world.env.clock.now(),
      timer: undefined,
    };
    this.#active.add(transfer);
    transfer.timer = this.#world.env.clock.setTimer(timeoutMs, () => this.#onTimeout(transfer));
    return transfer;
  }

  /** The other side may wait itself: whoever is at the end of the chain is named. */
  #onTimeout(transfer: Transfer): void {
    const { direction, timeoutMs, group, link } = transfer;
    const next = link ? `rank ${link.rank} did not ${direction === 'send' ? 'receive' : 'send'}` : 'no rank sent';
    this.#world.findCulprit(peersOf(transfer), ({ rank: peer, text }) => {
      if (!this.#active.has(transfer)) return;
      const message = `${describeTransfer(transfer)} timed out after ${timeoutMs} ms: ${next}; ${text}`;
      group.fail(new ShoalError('timeout', message, { peer, operation: direction, timeoutMs }));
    });
  }

  #match(receiver: Transfer, offer: Offer, link: PeerLink): void {
    receiver.link = link;
    const { buffer, group } = receiver;
    const dtype = dtypes[offer.dtypeCode]?.name;
    if (dtype !== receiver.dtype || offer.count !== receiver.count) {
      const message = `rank ${link.rank} sends ${dtype ?? 'an unknown dtype'}[${offer.count}] with tag ${offer.tag}, rank ${this.#world.env.rank} receives ${receiver.dtype}[${receiver.count}]: both must name the same dtype and count`;
      group.fail(new ShoalError('mismatch', message, { peer: link.rank, operation: 'recv' }));
      return;
    }
    if (offer.inline) {
      if (offer.payload.length !== buffer.bytes)
        throw new ShoalError('protocol', `message of ${offer.payload.length} bytes announced ${buffer.bytes}`);
      bytesIn(buffer).set(offer.payload);
    } else if (link.loadStore) {
      const region = this.#mapOffered(group, offer, link);
      if (region === undefined) return;
      if (offer.offset + buffer.bytes > region.bytes) throw new ShoalError('protocol', 'an offer reaches beyond its region');
      this.#world.env.kernels.copy(bytesIn(buffer), new Uint8Array(region.buffer, offer.offset, buffer.bytes));
    } else {
      this.#landing.set(`${link.rank}:${offer.id}`, receiver);
      link.post(encodeAccept(offer.id, buffer.key, buffer.offset));
      return;
    }
    link.post(encodeNumbered(MessageType.Taken, offer.id));
    this.#end(receiver, undefined);
  }

  /** Maps the offered memory; undefined where it is gone, and probably its sender, whose end then ends the transfer. */
  #mapOffered(group: TransferGroup, { key }: Offer, link: PeerLink): Region | undefined {
    try {
      return link.map(key);
    } catch (thrown) {
      const error = ShoalError.from(thrown);
      if (error.code === 'protocol') throw error;
      group.suspect(error);
      return undefined;
    }
  }

  /** The offer that came first of those the receive takes. */
  #takeUnmatched({ group, key, tag, link }: Transfer): Unmatched | undefined {
    let first = key;
    if (link === undefined) {
      let ordinal = Infinity;
      for (const each of group.links) {
        if (each === undefined) continue;
        const from = keyOf(group.spec.id, each.rank, tag);
        const [offer] = this.#unmatched.get(from) ?? [];
        if (offer && offer.ordinal < ordinal) [first, ordinal] = [from, offer.ordinal];
      }
    }
    return takeFirst(this.#unmatched, first);
  }

  /** The receive that was called first: from this rank, or from anyone. */
  #takeReceiver(key: string, keyOfAny: string): Transfer | undefined {
    const [own] = this.#receivers.get(key) ?? [];
    const [any] = this.#receivers.get(keyOfAny) ?? [];
    return takeFirst(this.#receivers, any && (own === undefined || any.ordinal < own.ordinal) ? keyOfAny : key);
  }

  #takeOffered(link: PeerLink, id: number): Transfer | undefined {
    const transfer = this.#offered.get(id);
    if (!transfer || transfer.link !== link)
      throw new ShoalError('protocol', `rank ${link.rank} answered transfer ${id}, which does not exist`);
    this.#offered.delete(id);
    return this.#active.has(transfer) ? transfer : undefined;
  }

  #end(transfer: Transfer, error: ShoalError | undefined): void {
    if (!this.#active.delete(transfer)) return;
    transfer.timer?.cancel();
    if (error) {
      const queue = this.#receivers.get(transfer.key);
      const index = queue?.indexOf(transfer) ?? -1;
      if (index >= 0) queue?.splice(index, 1);
      if (queue?.length === 0) this.#receivers.delete(transfer.key);
    }
    const source = transfer.link && transfer.group.links.indexOf(transfer.link);
    transfer.complete(error, source);
    if (transfer.direction === 'send') transfer.group.settled();
  }
}

function linkOf({ link }: Transfer): PeerLink {
  return must(link, () => 'messages are sent to a rank');
}

/** World ranks that may be at the other side. */
function peersOf({ link, group }: Transfer): number[] {
  if (link) return [link.rank];
  return group.links.flatMap((each) => (each === undefined ? [] : [each.rank]));
}

function describeTransfer({ direction, dtype, count, tag, link }: Transfer): string {
  const peer = link ? `rank ${link.rank}` : 'any rank';
  return `${direction} ${dtype}[${count}] ${direction === 'send' ? 'to' : 'from'} ${peer} with tag ${tag}`;
}

/** Key of a queue. @param rank the other side; undefined: anyone. */
function keyOf(group: number, rank: number | undefined, tag: number): string {
  return `${group}:${rank ?? 'any'}:${tag}`;
}

/** A queue that is empty is not kept. */
function takeFirst<T>(queues: Map<string, T[]>, key: string): T | undefined {
  const queue = queues.get(key);
  const first = queue?.shift();
  if (queue?.length === 0) queues.delete(key);
  return first;
}
