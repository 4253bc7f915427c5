/** A place for ranks: this machine, or (bench/network) several hosts made of network namespaces. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { freePort } from '../../src/base/testing/free-port.ts';
import { runTogether } from './processes.ts';

export interface RankProgram {
  readonly command: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
}

export interface Place {
  /** Name for people: `one host`, `4 hosts × 2 ranks, 1gbit`. */
  readonly name: string;
  readonly ranks: number;
  /** Name of the interface over which ranks reach each other, for peers that must be told. */
  readonly interfaceName: string;
  /** Starts one process per rank, with torchrun's variables, and resolves with rank 0's stdout when all have ended well.
   *  Rejects when one fails, after the others have been ended. */
  run(program: RankProgram): Promise<string>;
  /** The same for a program that mpirun must start. */
  runMpi(command: readonly string[]): Promise<string>;
}

/** Variables that torchrun sets, for one rank. */
export function rankVariables(place: {
  readonly rank: number;
  readonly ranks: number;
  readonly localRank: number;
  readonly localRanks: number;
  readonly masterAddress: string;
  readonly masterPort: number;
}): Record<string, string> {
  return {
    RANK: String(place.rank),
    WORLD_SIZE: String(place.ranks),
    LOCAL_RANK: String(place.localRank),
    LOCAL_WORLD_SIZE: String(place.localRanks),
    MASTER_ADDR: place.masterAddress,
    MASTER_PORT: String(place.masterPort),
  };
}

export const mpirun: readonly string[] = [
  'mpirun',
  ...(process.getuid?.() === 0 ? ['--allow-run-as-root'] : []),
  // Ranks may outnumber processors, and workers in the background have no terminal.
  '--oversubscribe',
];

/** Runs what mpirun must start. All mpirun of a user keep their files in one folder, which the last one removes while the next one uses it;
 *  here each has a folder of its own. */
export async function runMpirun(
  command: readonly string[],
  { timeoutMs, environment = {} }: { timeoutMs: number; environment?: Readonly<Record<string, string>> },
): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-mpirun-'));
  try {
    return await runTogether([{ command, environment: { OMPI_MCA_orte_tmpdir_base: folder, ...environment } }], { timeoutMs });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** This machine as a place. @param secret of the job, given to all ranks. */
export function localPlace({ ranks, secret, timeoutMs }: { ranks: number; secret: string; timeoutMs: number }): Place {
  return {
    name: 'one host',
    ranks,
    interfaceName: 'lo',
    run: async ({ command, environment = {} }) => {
      const masterPort = await freePort();
      const programs = Array.from({ length: ranks }, (_, rank) => ({
        command,
        environment: {
          ...rankVariables({ rank, ranks, localRank: rank, localRanks: ranks, masterAddress: '127.0.0.1', masterPort }),
          SHOAL_SECRET: secret,
          ...environment,
        },
      }));
      return runTogether(programs, { timeoutMs });
    },
    runMpi: (command) => runMpirun([...mpirun, '-n', String(ranks), ...command], { timeoutMs }),
  };
}
