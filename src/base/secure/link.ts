/** The agreement of two ends on encryption: between hosts, if both want it. Both ends say the
 *  same two facts, under the handshake's proof: whether they demand encryption, and the host, if their own end sees that the connection
 *  does not leave it. */
import { createHash } from 'node:crypto';
import { closeSync, openSync, readSync } from 'node:fs';
import { hostIdentity } from '../files/host-identity.ts';
import { defaultSettings, type Settings } from '../settings/settings.ts';
import type { Aead } from './noise.ts';

export type LinkSettings = Pick<Settings, 'encryption' | 'hostId'>;

/** The word of one end on encryption, and its host. */
export interface LinkClaim {
  readonly demands: boolean;
  /** The processor has instructions for AES. */
  readonly hasAes: boolean;
  /** Digest of the host's identity; zeros: the connection may leave the host. */
  readonly host: Uint8Array;
}

export const hostDigestBytes = 16;

/** The addresses that an end sees of its connection; `local`: it goes over no network. */
export type LinkEnds = { readonly localAddress?: string | undefined; readonly remoteAddress?: string | undefined } | 'local';

/** Packets between equal addresses do not leave the host; nor do those that come from a loopback address. */
function isLocal(ends: LinkEnds): boolean {
  if (ends === 'local') return true;
  const { localAddress, remoteAddress } = ends;
  return remoteAddress !== undefined && (remoteAddress === localAddress || /^(::ffff:)?127\.|^::1$/.test(remoteAddress));
}

export function claimOf(ends: LinkEnds, { encryption, hostId }: LinkSettings = defaultSettings): LinkClaim {
  const host = isLocal(ends) ? digestOf(hostId || hostIdentity(['net'])) : new Uint8Array(hostDigestBytes);
  return { demands: encryption === 'on', hasAes: hasAes(), host };
}

/** True if the connection stays within a host, by the word of both ends. */
export function isWithinHost(own: LinkClaim, peer: LinkClaim): boolean {
  return own.host.some((byte) => byte !== 0) && Buffer.compare(own.host, peer.host) === 0;
}

/** The cipher that both ends choose. */
export function aeadOf(own: Pick<LinkClaim, 'hasAes'>, peer: Pick<LinkClaim, 'hasAes'>): Aead {
  return own.hasAes && peer.hasAes ? 'aes-256-gcm' : 'chacha20-poly1305';
}

function hasAes(): boolean {
  if (process.platform === 'darwin') return true;
  const first = Buffer.alloc(8192);
  try {
    const file = openSync('/proc/cpuinfo', 'r');
    try {
      // One processor is enough: the system makes the text as it is read, and that of many takes long.
      readSync(file, first);
    } finally {
      closeSync(file);
    }
  } catch {
    return false;
  }
  return /^(flags|Features)\b.*\baes\b/m.test(first.toString('latin1'));
}

function digestOf(host: string): Uint8Array {
  return createHash('sha256').update(host).digest().subarray(0, hostDigestBytes);
}
