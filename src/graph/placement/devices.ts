/** The devices that a graph may use, each a full name and its incarnation: a number that is new whenever the process behind the device
 *  is, so that nobody takes values of a process that is gone. */
import { ShoalError } from '../../base/errors.ts';
import { nearestName } from '../../base/settings/nearest-name.ts';
import { formatDeviceName, isFullDeviceName, matchesDevice, parseDeviceName, type DeviceName } from '../structure/device-name.ts';
import { listed } from '../../base/collections/lists.ts';

/** A device of a graph's cluster. */
export interface Device {
  /** Canonical and full. */
  readonly name: string;
  /** New whenever the process behind the device is: nobody takes values of a process that is gone. */
  readonly incarnation: bigint;
}

interface KnownDevice extends Device {
  readonly parsed: DeviceName;
}

export class DeviceSet {
  readonly #devices: readonly KnownDevice[];
  readonly #byName: ReadonlyMap<string, KnownDevice>;

  /** @param devices in order of preference; those without incarnation have 1.
   *  @throws ShoalError `usage` for partial names, and for one device twice. */
  constructor(devices: readonly (string | Device)[]) {
    this.#devices = devices.map((each) => {
      const { name, incarnation } = typeof each === 'string' ? { name: each, incarnation: 1n } : each;
      const parsed = parseDeviceName(name);
      if (!isFullDeviceName(parsed))
        throw new ShoalError('usage', `device '${name}' must say job, task, type and number: /job:ps/task:1/device:CPU:0`);
      return { name: formatDeviceName(parsed), incarnation, parsed };
    });
    this.#byName = new Map(this.#devices.map((device) => [device.name, device]));
    if (this.#devices.length === 0) throw new ShoalError('usage', 'a graph needs at least one device');
    if (this.#byName.size < this.#devices.length) throw new ShoalError('usage', `a device is there twice: ${this.names.join(', ')}`);
  }

  get names(): readonly string[] {
    return this.#devices.map(({ name }) => name);
  }

  /** The device of this full, canonical name. */
  find(name: string): Device | undefined {
    return this.#byName.get(name);
  }

  /** The first device that `pattern` means. */
  match(pattern: DeviceName): Device | undefined {
    return this.#devices.find(({ parsed }) => matchesDevice(pattern, parsed));
  }

  /** The devices that there are instead of `name`, for messages. */
  suggestion(name: string): string {
    const nearest = nearestName(name, this.names);
    return `${nearest === undefined ? '' : `did you mean ${nearest}? `}devices: ${listed(this.names)}`;
  }
}
