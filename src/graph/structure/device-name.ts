/** Names of devices: `/job:ps/task:1/device:CPU:0`. What a name leaves out may be anything: `/job:ps` is any device of that job.
 *
 *      name   = "/job:" word  |  "/replica:" number  |  "/task:" number  |  "/device:" type ":" number  |  "/cpu:" number …   any order
 *
 *  The canonical form has job, replica (unless it is 0), task and device, in this order; types are upper case. */
import { ShoalError } from '../../base/errors.ts';

export interface DeviceName {
  readonly job?: string;
  readonly replica?: number;
  readonly task?: number;
  /** `CPU`, `GPU`, … */
  readonly type?: string;
  readonly index?: number;
}

export const deviceParts = ['job', 'replica', 'task', 'type', 'index'] as const satisfies readonly (keyof DeviceName)[];

const part =
  /\/(?:job:([a-z][a-z0-9_]*)|replica:(\d{1,9}|\*)|task:(\d{1,9}|\*)|device:([a-z][a-z0-9_]*|\*):(\d{1,9}|\*)|(cpu|gpu|tpu):(\d{1,9}|\*))/iy;

/** @throws ShoalError `usage` for what is no device name, or says one thing twice. */
export function parseDeviceName(text: string): DeviceName {
  const bad = (why: string): ShoalError =>
    new ShoalError('usage', `device '${text}' ${why}; a device is written like /job:ps/task:1/device:CPU:0`);
  const name: { -readonly [Key in keyof DeviceName]: DeviceName[Key] } = {};
  const seen = new Set<string>();
  let position = 0;
  while (position < text.length) {
    part.lastIndex = position;
    const match = part.exec(text);
    if (match === null) throw bad(`is not understood from '${text.slice(position, position + 40)}' on`);
    position = part.lastIndex;
    const [, job, replica, task, type = match[6], index = match[7]] = match;
    const kind = job !== undefined ? 'job' : replica !== undefined ? 'replica' : task !== undefined ? 'task' : 'device';
    if (seen.has(kind)) throw bad(`names its ${kind} twice`);
    seen.add(kind);
    if (job !== undefined) name.job = job;
    if (isGiven(replica)) name.replica = Number(replica);
    if (isGiven(task)) name.task = Number(task);
    if (isGiven(type)) name.type = type.toUpperCase();
    if (isGiven(index)) name.index = Number(index);
  }
  return name;
}

export function formatDeviceName({ job, replica, task, type, index }: DeviceName): string {
  const parts = [
    job === undefined ? '' : `/job:${job}`,
    replica === undefined || replica === 0 ? '' : `/replica:${replica}`,
    task === undefined ? '' : `/task:${task}`,
    type === undefined && index === undefined ? '' : `/device:${type ?? '*'}:${index ?? '*'}`,
  ];
  return parts.join('');
}

/** One device and no other. */
export function isFullDeviceName({ job, task, type, index }: DeviceName): boolean {
  return job !== undefined && task !== undefined && type !== undefined && index !== undefined;
}

/** Is the full name `device` one of those that `pattern` means? */
export function matchesDevice(pattern: DeviceName, device: DeviceName): boolean {
  const whole = { replica: 0, ...device };
  return deviceParts.every((part) => pattern[part] === undefined || pattern[part] === whole[part]);
}

/** `/job:ps/task:1`: the process of a device. */
export function taskOf(device: string): string {
  const { job = '', task = 0 } = parseDeviceName(device);
  return taskName(job, task);
}

export function taskName(job: string, task: number): string {
  return `/job:${job}/task:${task}`;
}

function isGiven(part: string | undefined): part is string {
  return part !== undefined && part !== '*';
}
