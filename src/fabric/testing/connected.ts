/** Two connected fabrics, for tests. */
import { Inbox } from '../conformance.ts';
import type { Fabric, FabricAddress } from '../fabric.ts';

/** Connects `a` and `b`: `b`, rank 1 of world `w`, listens; `a` dials it. @param wayTo the address that `a` dials. Default: that of `b`. */
export async function connected(
  a: Fabric,
  b: Fabric,
  wayTo: (address: FabricAddress) => FabricAddress | Promise<FabricAddress> = (address) => address,
): Promise<{ atA: Inbox; atB: Inbox; address: FabricAddress }> {
  let arrive!: (inbox: Inbox) => void;
  const arrived = new Promise<Inbox>((resolve) => {
    arrive = resolve;
  });
  const address = await b.listen((connection) => arrive(new Inbox(connection)));
  const atA = new Inbox(await a.connect(await wayTo(address), { peer: { world: 'w', rank: 1 }, timeoutMs: 10_000 }));
  return { atA, atB: await arrived, address };
}
