/** The registry of libraries that run collectives instead of Shoal's plans, by the name that a group's `backend` gives them. A new one is a
 *  folder of its own, and one line here: its code is loaded by the comm thread for the first group that asks. */
import type { CollectiveLibrary, CollectiveLibraryOptions } from './collective-library.ts';
import type { GroupSpec } from './group-spec.ts';

type Load = () => Promise<new (options: CollectiveLibraryOptions) => CollectiveLibrary>;

export const collectiveLibraries: Readonly<Record<string, Load>> = {
  mpi: async () => (await import('../mpi/mpi-collectives.ts')).MpiCollectives,
};

/** The library or the algorithm that a group's `backend` names. @param ofWorld the library of groups that name nothing. */
export function chosenBackend(backend: string | undefined, ofWorld?: string): Pick<GroupSpec, 'backend' | 'library'> {
  if (backend === undefined) return { library: ofWorld };
  return Object.hasOwn(collectiveLibraries, backend) ? { library: backend } : { backend };
}
