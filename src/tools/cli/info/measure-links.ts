/** Starts a small job and reports what its ranks reached each other over. */
import { ShoalError } from '../../../base/errors.ts';
import type { Environment } from '../../../base/settings/settings.ts';
import type { Links, RankEvent } from '../../timing/job.ts';
import { launchBench } from '../bench/launch-bench.ts';

/** @throws ShoalError `system` when the ranks do not come up; their own messages went to stderr. */
export async function measureLinks(ranks: number, environment: Environment): Promise<Links> {
  let links: Links | undefined;
  const onEvent = (event: RankEvent): void => {
    if (event.event === 'links') ({ links } = event);
  };
  const exitCode = await launchBench({ ranks, job: { kind: 'links', hosts: 1 }, environment, onEvent });
  if (exitCode === 0 && links !== undefined) return links;
  throw new ShoalError('system', `${ranks} ranks could not connect on this machine (exit code ${exitCode})`);
}
