/** The parameter server's client as a guest of the comm thread. */
import type { StartGuest } from '../../comm/thread/guest.ts';
import { ClientNode } from './node.ts';
import type { ClientCommand, ClientEvent, ClientPlan } from './protocol.ts';

export const startGuest: StartGuest<ClientCommand, ClientEvent> = async ({ plan, port, thread, left }) => {
  const node = await ClientNode.start(plan as ClientPlan, { thread, onEnded: left });
  node.attach(0, port);
  return node;
};
