import { describe, expect, test } from 'vitest';
import { detectPlace } from './environment.ts';

const job = { SHOAL_ROLE: 'worker', SHOAL_WORKERS: '4', SHOAL_SERVERS: '2' };
const sync = { async: false, localWorkers: 1 };

describe('a place in a parameter-server job', () => {
  test('one group of each by default', () => {
    const { role, topology } = detectPlace(job, sync);
    expect(role).toBe('worker');
    expect(topology).toEqual({ workerGroups: 1, workersPerGroup: 4, serverGroups: 1, serversPerGroup: 2, replicas: 1 });
  });

  test('asynchronous: the workers of each process are a group of their own', () => {
    expect(detectPlace(job, { ...sync, async: true }).topology).toMatchObject({ workerGroups: 4, workersPerGroup: 1 });
    expect(detectPlace(job, { async: true, localWorkers: 2 }).topology).toMatchObject({ workerGroups: 4, workersPerGroup: 2 });
  });

  test('workers that are threads count', () => {
    expect(detectPlace(job, { ...sync, localWorkers: 3 }).topology.workersPerGroup).toBe(12);
  });

  test('servers are numbered group by group', () => {
    const place = detectPlace(
      { ...job, SHOAL_ROLE: 'server', SHOAL_SERVERS: '4', SHOAL_SERVER_GROUPS: '2', SHOAL_WORKER_GROUPS: '2', SHOAL_SERVER: '3' },
      sync,
    );
    expect([place.serverGroup, place.server]).toEqual([1, 1]);
  });

  test.each([
    [{}, /SHOAL_ROLE is not set.*shoal run/],
    [{ ...job, SHOAL_ROLE: 'boss' }, /'boss' is not worker, server or standby/],
    [{ ...job, SHOAL_SERVERS: '' }, /SHOAL_SERVERS is not set/],
    [{ ...job, SHOAL_SERVERS: 'two' }, /'two' is not a whole number/],
    [{ ...job, SHOAL_SERVERS: '0' }, /must be at least 1/],
    [{ ...job, SHOAL_WORKER_GROUPS: '3' }, /4 workers cannot be split into 3 equal groups/],
    [{ ...job, SHOAL_SERVER_GROUPS: '2' }, /2 server groups for 1 worker groups/],
    [{ ...job, SHOAL_REPLICAS: '3' }, /replicas is 3/],
    [{ ...job, SHOAL_ROLE: 'server', SHOAL_SERVER: '2' }, /SHOAL_SERVER=2 must be below SHOAL_SERVERS=2/],
  ])('refuses %o', (environment, message) => {
    expect(() => detectPlace(environment, sync)).toThrow(message);
  });

  test('a process with several workers belongs to one group', () => {
    const environment = { ...job, SHOAL_WORKERS: '3', SHOAL_WORKER_GROUPS: '2' };
    expect(() => detectPlace(environment, { async: false, localWorkers: 2 })).toThrow(/would belong to two groups of 3/);
  });
});
