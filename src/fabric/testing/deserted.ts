/** An address where nobody listens, for tests. */
import { reservePort } from '../../base/testing/reserved-port.ts';
import type { FabricAddress } from '../fabric.ts';

export async function desertedTcpAddress(): Promise<FabricAddress> {
  return { provider: 'tcp', candidates: [`tcp://127.0.0.1:${await reservePort()}`] };
}
