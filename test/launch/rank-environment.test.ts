import { expect, it } from 'vitest';
import { clusterVariables } from '../../src/graph/cluster/environment.ts';
import { placeVariables, withoutOuterJob } from '../../src/launch/rank-environment.ts';

it('leaves out every role in the job of the rank that started the launcher, and nothing without such a job', () => {
  const roles = Object.fromEntries([...placeVariables, ...clusterVariables].map((name) => [name, '1']));
  expect(withoutOuterJob({ ...roles, SHOAL_JOB: 'outer', SHOAL_TIMEOUT_MS: '5' })).toEqual({ SHOAL_JOB: 'outer', SHOAL_TIMEOUT_MS: '5' });
  expect(withoutOuterJob({ ...roles, SHOAL_TIMEOUT_MS: '5' })).toEqual({ ...roles, SHOAL_TIMEOUT_MS: '5' });
});

it('leaves out folders of the outer job, and keeps one that was chosen for this job', () => {
  const outer = { SHOAL_JOB: 'outer', SHOAL_JOB_RECORDS: '/traces\n/flights', SHOAL_TRACE: '/traces' };
  expect(withoutOuterJob({ ...outer, SHOAL_FLIGHT_RECORDER_DIR: '/flights' })).toEqual({
    SHOAL_JOB: 'outer',
    SHOAL_JOB_RECORDS: '/traces\n/flights',
  });
  expect(withoutOuterJob({ ...outer, SHOAL_TRACE: '/mine' })).toMatchObject({ SHOAL_TRACE: '/mine' });
});
