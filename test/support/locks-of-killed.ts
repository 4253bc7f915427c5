/** The reason why processes that use a provider of libfabric may not be killed in tests: their peers' threads would wait for
 *  ever, inside the library. Undefined: they may. */
export function locksOfKilled(provider: string): string | undefined {
  return provider === 'shm' ? "libfabric's shm has spin locks in shared memory, and a killed process may hold one" : undefined;
}
