/** Probes a process that the records name as a server, before another process takes its place. */
import { sleep } from '../../base/clock.ts';
import { idMax, makeAddress, type Address } from '../../messaging/address.ts';
import { Dealer } from '../../messaging/dealer.ts';
import { heartbeat, heartbeatMs, ListeningTime } from './heartbeat.ts';
import type { NodeContext } from './node-context.ts';
import type { ServerRecord } from './server-records.ts';
import { probeRole } from '../protocol/topology.ts';

const connectMs = 1000;

/** False when its process has ended, or has not answered for as long as a server may be silent. Its heartbeats are answered by
 *  the thread that serves, so that one which is stopped, or hangs, does not count as there. */
export async function answers(node: NodeContext, record: ServerRecord, signal?: AbortSignal): Promise<boolean> {
  const own = makeAddress({ group: 0, id: node.random.integer(idMax), role: probeRole });
  const dealer = new Dealer(node.messaging, { address: own });
  const listening = new ListeningTime(node.clock);
  try {
    let connected = false;
    while (listening.nowMs <= node.settings.serverSilenceMs && signal?.aborted !== true) {
      if (node.processes.isGone(record)) return false;
      connected ||= await reach(dealer, record.url);
      if (connected && (await asks(node, dealer, own))) return true;
      listening.tick();
    }
    return false;
  } finally {
    await dealer.close({ timeoutMs: 0 });
  }
}

/** @returns whether it has answered. */
async function asks(node: NodeContext, dealer: Dealer, own: Address): Promise<boolean> {
  try {
    dealer.send(heartbeat(own, own));
    await sleep(node.clock, heartbeatMs);
    return dealer.tryReceive() !== undefined;
  } catch {
    return false; // the connection is over: silence
  }
}

async function reach(dealer: Dealer, url: string): Promise<boolean> {
  try {
    await dealer.connect(url, { timeoutMs: connectMs });
    return true;
  } catch {
    return false;
  }
}
