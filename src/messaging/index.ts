/** `shoal/messaging`: messages between threads and processes, over whatever connects them.
 *  @module */
export { makeAddress, parseAddress, groupOf, idOf, roleOf, formatAddress, type Address, type AddressParts } from './address.ts';
export type { FabricEndpoint } from './backends/fabric/fabric.ts';
export { MessagingContext, type MessagingOptions } from './context.ts';
export { Dealer, type ConnectOptions, type DealerOptions } from './dealer.ts';
export type { FormatValues } from './format.ts';
export { defaultLimits, type MessagingLimits } from './limits.ts';
export { MessageSocket, type CloseOptions, type ReceiveOptions } from './message-socket.ts';
export { Msg } from './msg.ts';
export { Poller, type PollerOptions } from './poller.ts';
export { Router, type PeerEvent, type RouterOptions } from './router.ts';
export { ThreadGate } from './thread-gate.ts';
