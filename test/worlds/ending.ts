/** How a call of a rank's script ends. */

/** Waits for the call. @throws where a result is not what it must be. */
export type Ending = () => Promise<void>;

export function wrong({ rank }: { rank: number }, index: number, what: string): never {
  throw new Error(`rank ${rank}, action ${index}: ${what}`);
}
