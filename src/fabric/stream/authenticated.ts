/** Turns a dialled socket into a stream on which both sides have proved the secret, and that into a provider's connection; a
 *  failure leaves nothing behind. */
import { Handshake } from '../../base/auth.ts';
import { ShoalError } from '../../base/errors.ts';
import type { ConnectOptions, FabricOptions } from '../fabric.ts';
import type { FramedSocket } from './framed-socket.ts';

export interface Dialler extends Pick<FabricOptions, 'identity' | 'secret' | 'random'> {
  readonly purpose: string;
  readonly peer: ConnectOptions['peer'];
}

/** An attempt for {@link dial}: gives up when `signal` fires.
 *  @param meet the exchange on the stream that has to succeed before it counts. */
export async function authenticated<T>(
  stream: FramedSocket,
  dialler: Dialler,
  signal: AbortSignal,
  meet: () => T | Promise<T>,
): Promise<T> {
  const { identity, secret, random, purpose, peer } = dialler;
  const { world, rank } = identity;
  const onAbort = (): void => stream.fail(new ShoalError('timeout', 'no answer yet'));
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    await stream.authenticate(new Handshake({ role: 'dialer', secret, purpose, world, rank, expectedPeer: peer.rank, random }), peer.world);
    const met = await meet();
    if (signal.aborted) throw new ShoalError('timeout', 'answered too late');
    return met;
  } catch (thrown) {
    stream.abort();
    throw thrown;
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
