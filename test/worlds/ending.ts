/** The end of a call of a rank's script. */

/** Waits for the call. @throws when a result is wrong. */
export type Ending = () => Promise<void>;

export function wrong({ rank }: { rank: number }, index: number, what: string): never {
  throw new Error(`rank ${rank}, action ${index}: ${what}`);
}
