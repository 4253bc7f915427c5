/** The work of a collective on a device's memory. */
import { ShoalError } from '../../../base/errors.ts';
import { anyNumber, checkArgument } from '../../../base/schema.ts';
import { PendingWork } from '../../../comm/caller/work.ts';

/** Nothing arrives but by the event loop. */
const idle = { now: () => 0, drain: () => undefined, pump: () => false };

export class DeviceWork extends PendingWork {
  readonly #what: string;

  constructor(what: string) {
    super(idle, what);
    this.#what = what;
  }

  override waitSync(timeoutMs = Infinity): void {
    checkArgument('waitSync: timeoutMs', timeoutMs, anyNumber);
    if (this.done) return super.waitSync(timeoutMs);
    const message = `${this.#what}: waitSync would stop what it waits for: memory of a device is mapped by this thread's event loop; await the work`;
    throw new ShoalError('usage', message);
  }
}
