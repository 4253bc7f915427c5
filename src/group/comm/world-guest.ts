/** A world as a guest of the comm thread. */
import type { StartGuest } from '../../comm/thread/guest.ts';
import { CommCore } from './comm-core.ts';
import type { Command, CommEvent, WorldPlan } from '../shared/comm-protocol.ts';
import { systemEnvironment } from './system-environment.ts';

export const startGuest: StartGuest<Command, CommEvent> = ({ plan, port, thread }) => {
  const world = plan as WorldPlan;
  const core = new CommCore(world, systemEnvironment(world, thread), (event) => port.emit(event));
  port.onCommand((command) => core.handle(command));
  void core.start();
  return core;
};
