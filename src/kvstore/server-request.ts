/** A request of a stub that a server has taken and not answered yet. */
import type { ShoalError } from '../base/errors.ts';
import type { Msg } from '../messaging/msg.ts';
import type { ServerSession } from './server-session.ts';
import type { Run, RunState } from './wire.ts';

export interface ServerRequest {
  readonly session: ServerSession;
  readonly id: number;
  readonly epoch: number;
  /** As it came: a standby that joins late gets it again. */
  readonly msg: Msg;
  readonly runs: readonly Run[];
  readonly states: RunState[];
  /** Values for the answer. */
  readonly payload: Uint8Array | undefined;
  /** By run: where its values go. */
  readonly targets: (Uint8Array | undefined)[];
  /** Slots that are not as the request wants them. */
  waiting: number;
  /** Slots of its pushes that are not settled. */
  unsettled: number;
  error: ShoalError | undefined;
  answered: boolean;
}
