/** Entry of the client thread. */
import { workerData } from 'node:worker_threads';
import { ShoalError } from '../../base/errors.ts';
import { ClientNode } from './node.ts';
import type { ClientEvent, ClientPlan, ClientTicket } from './protocol.ts';

const { plan, ticket } = workerData as { plan: ClientPlan; ticket: ClientTicket };
try {
  (await ClientNode.start(plan)).attach(ticket);
} catch (thrown) {
  const failed: ClientEvent = { type: 'failed', error: ShoalError.from(thrown).toData() };
  ticket.port.postMessage(failed);
  ticket.port.close();
}
