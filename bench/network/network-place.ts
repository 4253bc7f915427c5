/** A place of ranks on the hosts of a network: rank r lives on host ⌊r / ranks per host⌋. */
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { mpirun, rankVariables, runMpirun, type Place } from '../peers/place.ts';
import { runTogether } from '../peers/processes.ts';
import { interfaceName, type Network } from './network.ts';

const agent = fileURLToPath(new URL('mpi-agent.sh', import.meta.url));
/** Port of rank 0: nothing else listens in a fresh namespace. */
const masterPort = 29400;

export interface NetworkPlaceOptions {
  readonly network: Network;
  readonly ranksPerHost: number;
  /** Secret of the job, given to all ranks. */
  readonly secret: string;
  readonly timeoutMs: number;
}

export function networkPlace({ network, ranksPerHost, secret, timeoutMs }: NetworkPlaceOptions): Place {
  const { hosts, description, name } = network;
  const ranks = hosts.length * ranksPerHost;
  return {
    name: description,
    ranks,
    interfaceName,
    run: ({ command, environment = {} }) => {
      const programs = Array.from({ length: ranks }, (_, rank) => {
        const host = Math.floor(rank / ranksPerHost);
        const localRank = rank % ranksPerHost;
        return {
          command: [...hosts[host].enter, ...command],
          environment: {
            ...rankVariables({ rank, ranks, localRank, localRanks: ranksPerHost, masterAddress: hosts[0].address, masterPort }),
            // Namespaces share this machine's memory and identity; hosts do not.
            SHOAL_HOST_ID: `${name}-host-${host}`,
            SHOAL_SECRET: secret,
            ...environment,
          },
        };
      });
      return runTogether(programs, { timeoutMs });
    },
    runMpi: (command) => {
      const where = hosts.map(({ address }) => `${address}:${ranksPerHost}`).join(',');
      const parameters = {
        plm_rsh_agent: agent,
        plm_rsh_no_tree_spawn: '1',
        // Ranks of one host may share memory, others use TCP.
        btl: ranksPerHost > 1 ? 'vader,tcp,self' : 'tcp,self',
        pml: 'ob1',
        btl_tcp_if_include: interfaceName,
        oob_tcp_if_include: interfaceName,
        // The hosts share our processors, which Open MPI cannot see; the network needs some of their time, too.
        mpi_yield_when_idle: ranks >= availableParallelism() ? '1' : '0',
      };
      const flags = Object.entries(parameters).flatMap(([key, value]) => ['--mca', key, value]);
      const started = [...hosts[0].enter, ...mpirun, ...flags, '--host', where, '-n', String(ranks), ...command];
      return runMpirun(started, { timeoutMs, environment: { BENCH_NETWORK: name } });
    },
  };
}
