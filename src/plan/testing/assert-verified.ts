import { assert } from '../../base/assert.ts';
import type { Plan } from '../ir.ts';
import { verify } from '../verify.ts';

/** A wrong plan is a programmer's error. */
export function assertVerified(plan: Plan): void {
  const { ok, problems } = verify(plan);
  assert(ok, () => {
    const { collective, count, topology } = plan.request;
    const hosts = topology.hosts.map((host) => `[${host.join(' ')}]`).join(' ');
    return `${plan.algorithm} ${collective} of ${count} elements on ${hosts} is wrong:\n  ${problems.join('\n  ')}`;
  });
}
