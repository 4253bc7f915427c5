/** Two connected fabrics, for tests. */
import { Inbox } from '../conformance.ts';
import type { Fabric, FabricAddress } from '../fabric.ts';

/** Connects `a` and `b`: `b`, rank 1 of world `w`, listens; `a` dials it. */
export async function connected(a: Fabric, b: Fabric): Promise<{ atA: Inbox; atB: Inbox; address: FabricAddress }> {
  let arrive!: (inbox: Inbox) => void;
  const arrived = new Promise<Inbox>((resolve) => {
    arrive = resolve;
  });
  const address = await b.listen((connection) => arrive(new Inbox(connection)));
  const atA = new Inbox(await a.connect(address, { peer: { world: 'w', rank: 1 }, timeoutMs: 10_000 }));
  return { atA, atB: await arrived, address };
}
