/** Worlds that the processes of a test open one after another: a process costs more than a world. */
import { initProcessGroup, type ProcessGroup } from 'shoal';
import { hostEnvironment } from './host-environment.ts';

export interface TestWorld {
  /** Name of the world, and of the test that checks it. */
  readonly name: string;
  /** Number of ranks: the first processes are its ranks. */
  readonly n: number;
  /** Hosts, one letter per rank; default: all are where they are. */
  readonly hosts?: string;
  readonly backend?: string;
  readonly env?: Readonly<Record<string, string>>;
  /** Scenario of the fixture there, by its own names. */
  readonly scenario?: string;
  /** The part of the conformance suite that runs there; default: `all`. See `src/group/conformance.ts`. */
  readonly checks?: 'all' | 'planned';
}

/** Runs `program` in each of the worlds of `testWorlds`; in a process that others have started, in the one that the environment
 *  describes. */
export async function inWorlds(program: (group: ProcessGroup, world: TestWorld) => Promise<void>): Promise<void> {
  const { WORLDS, MEETING = '', RANK = '' } = process.env;
  if (WORLDS === undefined) {
    const group = await initProcessGroup();
    const checks = process.env.CHECKS === 'planned' ? ({ checks: 'planned' } as const) : {};
    return program(group, { name: 'of the environment', n: group.size, ...checks });
  }
  const rank = Number(RANK);
  for (const [index, world] of (JSON.parse(WORLDS) as TestWorld[]).entries()) {
    if (rank >= world.n) continue;
    const hosts = world.hosts === undefined ? {} : hostEnvironment(world.hosts, rank);
    const environment = { ...process.env, LOCAL_WORLD_SIZE: String(world.n), ...hosts, ...world.env };
    const group = await initProcessGroup({
      environment,
      initMethod: `file://${MEETING}/${index}`,
      rank,
      worldSize: world.n,
      joinTimeoutMs: 120_000,
      ...(world.backend === undefined ? {} : { backend: world.backend }),
    });
    await program(group, world);
  }
}
