/** A parameter server's answer to the question how it is. Plain data. */
import { anyList, count, literal, object, type Shape, type ValueOf } from '../base/schema.ts';
import { sample, type Sample } from './definitions.ts';

export const serverShape = object({
  pid: count,
  /** `standby`: it would take over. */
  role: literal('server', 'standby'),
  /** Messages of workers and other servers that have come. */
  requests: count,
  /** Pushes whose round is not complete, barriers, and messages that wait for the standby or for a checkpoint. */
  waiting: count,
  /** Parts of parameters that it keeps. */
  keys: count,
  clients: count,
  samples: anyList as Shape<readonly Sample[]>,
});

export type ServerReport = Readonly<ValueOf<typeof serverShape>>;

/** The values of a server's metrics, under the name that its launcher gave it; undefined: it does not answer. */
export function serverSamples(name: string, report: ServerReport | undefined): Sample[] {
  const own = report === undefined ? [sample('serverUp', 0)] : [sample('serverUp', 1), ...report.samples];
  return own.map((each) => ({ ...each, labels: { process: name, ...each.labels } }));
}
