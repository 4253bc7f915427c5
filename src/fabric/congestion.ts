/** Congestion control of TCP sockets, which Node does not offer: the part of the addon that asks the kernel is an argument.
 *
 *  BBR takes the shortest round trip it has seen for the length of the path. Between processes that wait for a CPU for longer
 *  than their packets travel, that is a fraction of what the path needs: it sends too little, and small transfers stand still
 *  for tens of milliseconds with an open window. Cubic and Reno fill the path. (Cardwell et al., "BBR: congestion-based
 *  congestion control", 2016, measure wide-area paths.) */

/** What of the addon is needed here. */
export interface CongestionNative {
  congestionControl(descriptor: number, names: readonly string[]): string | undefined;
}

/** In place of BBR: the first may need a privilege, the second is always granted. */
const insteadOfBbr: readonly string[] = ['cubic', 'reno'];

/** A function for `FabricOptions.tuneSocket`. @param wanted in order of preference; none: what the system has, unless that is BBR. */
export function congestionTuner(native: CongestionNative, wanted: readonly string[]): (descriptor: number) => string | undefined {
  return (descriptor) => {
    const granted = native.congestionControl(descriptor, wanted);
    if (wanted.length > 0 || granted === undefined || !granted.startsWith('bbr')) return granted;
    return native.congestionControl(descriptor, insteadOfBbr);
  };
}
