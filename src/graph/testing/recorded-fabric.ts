/** Fabrics over tcp whose connections tests break: those that are dialled are kept, in their order. */
import { systemClock } from '../../base/clock.ts';
import { systemRandom } from '../../base/random.ts';
import type { Connection } from '../../fabric/fabric.ts';
import { TcpFabric } from '../../fabric/providers/tcp.ts';

export function recordedTcp(connections: Connection[], rank: number, secret: Uint8Array): TcpFabric {
  const fabric = new TcpFabric({ identity: { world: 'w', rank }, secret, clock: systemClock, random: systemRandom });
  const connect = fabric.connect.bind(fabric);
  fabric.connect = async (...args) => {
    const connection = await connect(...args);
    connections.push(connection);
    return connection;
  };
  return fabric;
}
