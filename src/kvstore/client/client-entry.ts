/** Entry of the stub thread. */
import { workerData } from 'node:worker_threads';
import { ShoalError } from '../../base/errors.ts';
import { StubNode } from './node.ts';
import type { StubEvent, StubPlan, StubTicket } from './protocol.ts';

const { plan, ticket } = workerData as { plan: StubPlan; ticket: StubTicket };
try {
  (await StubNode.start(plan)).attach(ticket);
} catch (thrown) {
  const failed: StubEvent = { type: 'failed', error: ShoalError.from(thrown).toData() };
  ticket.port.postMessage(failed);
  ticket.port.close();
}
