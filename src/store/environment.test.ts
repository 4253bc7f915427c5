import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { isShoalError } from '../base/errors.ts';
import type { Environment } from '../base/settings/settings.ts';
import { detectWorld, expandTasksPerNode, firstSlurmNode, isLoopback } from './environment.ts';

const torch = { RANK: '1', WORLD_SIZE: '4', LOCAL_RANK: '1', LOCAL_WORLD_SIZE: '2', MASTER_ADDR: 'node0', MASTER_PORT: '29500' };
const openMpi = {
  OMPI_COMM_WORLD_RANK: '1',
  OMPI_COMM_WORLD_SIZE: '2',
  OMPI_COMM_WORLD_LOCAL_RANK: '1',
  OMPI_COMM_WORLD_LOCAL_SIZE: '2',
  PMIX_NAMESPACE: '1938292737',
};
const pmi = { PMI_RANK: '0', PMI_SIZE: '2', MPI_LOCALRANKID: '0', MPI_LOCALNRANKS: '2' };
const slurm = {
  SLURM_JOB_ID: '4711',
  SLURM_STEP_ID: '2',
  SLURM_PROCID: '5',
  SLURM_STEP_NUM_TASKS: '7',
  SLURM_NTASKS: '7',
  SLURM_LOCALID: '1',
  SLURM_NODEID: '2',
  SLURM_STEP_TASKS_PER_NODE: '2(x3),1',
  SLURM_STEP_NODELIST: 'gpu[03-05,9]',
};

const refusal = (environment: Environment): string => {
  try {
    detectWorld(environment);
  } catch (error) {
    if (isShoalError(error) && error.code === 'config') return error.message;
    throw error;
  }
  throw new Error('was accepted');
};

describe('detectWorld', () => {
  it('is a world of one when nothing is set', () => {
    expect(detectWorld({ PATH: '/bin', RANK: '' })).toMatchObject({
      source: 'none',
      rank: 0,
      worldSize: 1,
      localRank: 0,
      localSize: 1,
      meeting: { kind: 'alone' },
    });
  });

  it("reads Shoal's own launcher: the store is hosted elsewhere", () => {
    expect(detectWorld({ ...torch, SHOAL_JOB: 'j1', SHOAL_SECRET: 's', TORCHELASTIC_RESTART_COUNT: '2' })).toEqual({
      source: 'shoal',
      rank: 1,
      worldSize: 4,
      localRank: 1,
      localSize: 2,
      meeting: { kind: 'address', host: 'node0', port: 29500, hostedElsewhere: true },
      world: 'j1',
      generation: 2,
      secret: 's',
    });
  });

  it("reads torchrun's names, also without the local ones", () => {
    expect(detectWorld(torch)).toMatchObject({
      source: 'torchrun',
      localRank: 1,
      localSize: 2,
      meeting: { kind: 'address', host: 'node0', port: 29500, hostedElsewhere: false },
    });
    const { LOCAL_RANK: _rank, LOCAL_WORLD_SIZE: _size, ...bare } = torch;
    expect(detectWorld(bare)).toMatchObject({ localRank: undefined, localSize: undefined });
  });

  it('meets through a file on loopback without a secret, at the port that was asked for', () => {
    expect(detectWorld({ ...torch, MASTER_ADDR: '127.0.0.1' }).meeting).toEqual({ kind: 'file', name: 'port-29500', port: 29500 });
    expect(detectWorld({ ...torch, MASTER_ADDR: 'localhost', SHOAL_SECRET: 's' }).meeting).toMatchObject({
      kind: 'address',
      host: 'localhost',
    });
  });

  it("leaves torchrun's own store alone", () => {
    const agent = { ...torch, TORCHELASTIC_RUN_ID: 'r', TORCHELASTIC_USE_AGENT_STORE: 'True' };
    expect(refusal(agent)).toContain('SHOAL_MASTER_PORT');
    expect(detectWorld({ ...agent, SHOAL_MASTER_PORT: '4000' })).toMatchObject({ meeting: { port: 4000 } });
    const oneHost = { ...agent, LOCAL_WORLD_SIZE: '4' };
    const first = detectWorld(oneHost).meeting;
    expect(first).toMatchObject({ kind: 'file', port: 0 });
    expect(detectWorld({ ...oneHost, TORCHELASTIC_RESTART_COUNT: '1' }).meeting).not.toEqual(first);
  });

  it('reads Open MPI and meets through a file named after the job on one host', () => {
    const spec = detectWorld(openMpi);
    expect(spec).toMatchObject({ source: 'open-mpi', rank: 1, worldSize: 2, localRank: 1, localSize: 2 });
    expect(spec.meeting).toMatchObject({ kind: 'file', port: 0 });
    expect(detectWorld({ ...openMpi, OMPI_COMM_WORLD_RANK: '0' }).meeting).toEqual(spec.meeting);
    expect(detectWorld({ ...openMpi, PMIX_NAMESPACE: 'other' }).meeting).not.toEqual(spec.meeting);
    expect(detectWorld({ ...openMpi, MASTER_ADDR: 'h', MASTER_PORT: '1' }).meeting).toMatchObject({ kind: 'address', host: 'h', port: 1 });
    expect(refusal({ ...openMpi, OMPI_COMM_WORLD_LOCAL_SIZE: '1', OMPI_COMM_WORLD_LOCAL_RANK: '0' })).toContain('MASTER_ADDR');
    expect(refusal({ ...openMpi, PMIX_NAMESPACE: '' })).toContain('MASTER_ADDR');
    expect(detectWorld({ OMPI_COMM_WORLD_RANK: '0', OMPI_COMM_WORLD_SIZE: '1' }).meeting).toEqual({ kind: 'alone' });
  });

  it('reads PMI', () => {
    expect(detectWorld(pmi, { parentPid: 77 })).toMatchObject({
      source: 'pmi',
      rank: 0,
      worldSize: 2,
      localSize: 2,
      meeting: { kind: 'file' },
    });
    expect(detectWorld(pmi, { parentPid: 77 }).meeting).not.toEqual(detectWorld(pmi, { parentPid: 78 }).meeting);
    expect(refusal(pmi)).toContain('MASTER_ADDR');
  });

  it('reads Slurm: master is the first node, the port follows from the step', () => {
    const spec = detectWorld(slurm);
    expect(spec).toMatchObject({ source: 'slurm', rank: 5, worldSize: 7, localRank: 1, localSize: 2, meeting: { host: 'gpu03' } });
    expect((spec.meeting as { port: number }).port).toBeGreaterThanOrEqual(20_000);
    expect(detectWorld({ ...slurm, SLURM_STEP_ID: '3' }).meeting).not.toEqual(spec.meeting);
    expect(detectWorld({ ...slurm, MASTER_PORT: '4000' }).meeting).toMatchObject({ port: 4000 });
    expect(detectWorld({ ...slurm, PMI_RANK: '5', PMI_SIZE: '7' }).source).toBe('slurm');
    expect(detectWorld({ ...slurm, MASTER_ADDR: 'other', MASTER_PORT: '1' }).meeting).toMatchObject({ host: 'other' });
    const oneNode = { ...slurm, SLURM_NODEID: '0', SLURM_STEP_TASKS_PER_NODE: '7', SLURM_STEP_NODELIST: 'gpu03' };
    expect(detectWorld(oneNode).meeting).toMatchObject({ kind: 'file' });
  });

  it('a batch script that was not started by srun is a world of one', () => {
    expect(detectWorld({ SLURM_JOB_ID: '1', SLURM_PROCID: '0', SLURM_NTASKS: '4' })).toMatchObject({ source: 'none', worldSize: 1 });
  });

  it('reads Kubernetes indexed jobs', () => {
    const job = { JOB_COMPLETION_INDEX: '2', WORLD_SIZE: '3', MASTER_ADDR: 'train-0.train' };
    expect(detectWorld(job)).toMatchObject({
      source: 'kubernetes',
      rank: 2,
      worldSize: 3,
      meeting: { host: 'train-0.train', port: 29500 },
    });
    expect(refusal({ ...job, MASTER_ADDR: '' })).toMatch(/MASTER_ADDR is not set, but JOB_COMPLETION_INDEX=2, WORLD_SIZE=3 are/);
    expect(refusal({ ...job, WORLD_SIZE: '' })).toMatch(/^WORLD_SIZE is not set/);
  });

  it('names what is missing and what was found', () => {
    expect(refusal({ RANK: '0' })).toMatch(/^WORLD_SIZE is not set, but RANK=0 is/);
    expect(refusal({ WORLD_SIZE: '2' })).toMatch(/^RANK is not set, but WORLD_SIZE=2 is/);
    expect(refusal({ OMPI_COMM_WORLD_SIZE: '2' })).toMatch(/^OMPI_COMM_WORLD_RANK is not set/);
    expect(refusal({ PMI_SIZE: '2' })).toMatch(/^PMI_RANK is not set/);
    expect(refusal({ RANK: '0', WORLD_SIZE: '2', MASTER_ADDR: 'h' })).toMatch(
      /^MASTER_PORT is not set, but MASTER_ADDR=h, RANK=0, WORLD_SIZE=2 are/,
    );
    expect(refusal({ RANK: '0', WORLD_SIZE: '2', MASTER_PORT: '1' })).toMatch(/^MASTER_ADDR is not set/);
  });

  it('refuses what is malformed or contradicts itself', () => {
    expect(refusal({ ...torch, RANK: 'one' })).toBe("RANK='one' is not a whole number");
    expect(refusal({ ...torch, RANK: '4' })).toBe('RANK=4 must be below WORLD_SIZE=4');
    expect(refusal({ ...torch, RANK: '-1' })).toContain('RANK');
    expect(refusal({ ...torch, WORLD_SIZE: '0', RANK: '0' })).toContain('WORLD_SIZE=0 must be at least 1');
    expect(refusal({ ...torch, LOCAL_RANK: '2' })).toBe('LOCAL_RANK=2 must be below LOCAL_WORLD_SIZE=2');
    expect(refusal({ ...torch, LOCAL_WORLD_SIZE: '5' })).toContain('LOCAL_WORLD_SIZE=5');
    expect(refusal({ ...torch, MASTER_PORT: '70000' })).toContain('MASTER_PORT=70000');
    expect(refusal({ ...torch, ...openMpi })).toContain('RANK=1 WORLD_SIZE=4 contradict OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2');
    expect(detectWorld({ ...torch, ...openMpi, TORCHELASTIC_RUN_ID: 'x' }).source).toBe('torchrun');
  });

  it('answers or refuses with config, whatever is set', () => {
    const names = Object.keys({ ...torch, ...openMpi, ...pmi, ...slurm, JOB_COMPLETION_INDEX: '', SHOAL_JOB: '', TORCHELASTIC_RUN_ID: '' });
    const value = fc.oneof(fc.nat(8).map(String), fc.string({ maxLength: 6 }), fc.constantFrom('gpu[1-2]', '2(x2)', '127.0.0.1'));
    fc.assert(
      fc.property(fc.dictionary(fc.constantFrom(...names), value), (environment) => {
        try {
          const { rank, worldSize } = detectWorld(environment);
          expect(rank).toBeLessThan(worldSize);
        } catch (error) {
          expect(error).toMatchObject({ name: 'ShoalError', code: 'config' });
        }
      }),
      { numRuns: 2000 },
    );
  });
});

describe('Slurm lists', () => {
  it('expands', () => {
    expect(['a', 'a,b', 'gpu[03-05,9],login1', 'n[7]', 'r[1-2]n[04-09]', 'n3-[1,2]-x'].map((list) => firstSlurmNode(list))).toEqual([
      'a',
      'a',
      'gpu03',
      'n7',
      'r1n04',
      'n3-1-x',
    ]);
    expect(() => firstSlurmNode('[')).toThrow(/node list/);
    expect(expandTasksPerNode('2(x3),1')).toEqual([2, 2, 2, 1]);
    expect(expandTasksPerNode('4')).toEqual([4]);
    expect(expandTasksPerNode('x')).toEqual([]);
  });
});

describe('isLoopback', () => {
  it('knows this host', () => {
    expect(['localhost', '127.0.0.1', '127.1.2.3', '::1'].every(isLoopback)).toBe(true);
    expect(['10.0.0.1', 'node0', '128.0.0.1', ''].some(isLoopback)).toBe(false);
  });
});
