/** Congestion control of TCP sockets, which Node does not offer: the part of the addon that asks the kernel is an argument.
 *
 *  BBR takes the shortest round trip it has seen for the length of the path. Between processes that wait for a CPU for longer
 *  than their packets travel, that is a fraction of what the path needs: it sends too little, and small transfers stand still
 *  for tens of milliseconds with an open window. Cubic and Reno fill the path. (Cardwell et al., "BBR: congestion-based
 *  congestion control", 2016, measure wide-area paths.)
 *
 *  But Cubic and Reno take every lost segment for a full queue, which BBR does not: a link that loses all the time goes on
 *  with BBR. On a long path few losses suffice for that: their window grows by a segment in a round trip. There a wait for a CPU is
 *  short beside the path, so BBR stays where it is the system's. */

/** Tuning of one socket, which goes on for the life of the connection. */
export interface SocketTuning {
  /** The congestion control in force; undefined: unknown. */
  readonly congestionControl: string | undefined;
  /** Called after each half megabyte or so that was written; may choose another congestion control. */
  review(descriptor: number): void;
}

/** The part of the addon that is used here. */
export interface CongestionNative {
  congestionControl(descriptor: number, names: readonly string[]): string | undefined;
  socketRoundTrip(descriptor: number): number | undefined;
  socketSegments(descriptor: number, counts: Float64Array): boolean;
}

export interface CongestionOptions {
  readonly native: CongestionNative;
  /** Congestion controls in order of preference; none: the system's stays, unless that is BBR, until the link turns out to lose. */
  readonly wanted: readonly string[];
  /** Called once per link that loses, with what was done; for logs. */
  readonly onLoss: (message: string) => void;
}

/** Replacements for BBR: the first may need a privilege, the second is always granted. */
const insteadOfBbr: readonly string[] = ['cubic', 'reno'];
/** Round trip of a long path, in microseconds. */
const longPathUs = 10_000;

/** Makes a function for `TcpOptions.tuneSocket`. */
export function congestionTuner({ native, wanted, onLoss }: CongestionOptions): (descriptor: number, link: string) => SocketTuning {
  return (descriptor, link) => {
    const granted = native.congestionControl(descriptor, wanted);
    const isReplaced = wanted.length === 0 && isBbr(granted) && !isLong(native, descriptor);
    const chosen = (isReplaced ? native.congestionControl(descriptor, insteadOfBbr) : undefined) ?? granted;
    if (wanted.length > 0 || chosen === undefined || isBbr(chosen)) return { congestionControl: chosen, review: () => {} };
    return new ReviewedSocket(native, chosen, (what) => onLoss(`${link} ${what}`));
  };
}

function isBbr(name: string | undefined): boolean {
  return name?.startsWith('bbr') === true;
}

const isLong = ({ socketRoundTrip }: CongestionNative, descriptor: number): boolean => (socketRoundTrip(descriptor) ?? 0) >= longPathUs;

/** Tuning of a socket that changes to BBR once its link has turned out to lose. */
class ReviewedSocket implements SocketTuning {
  readonly #native: CongestionNative;
  readonly #onLoss: (what: string) => void;
  readonly #counts = new Float64Array(2);
  #watch: LossWatch | undefined = new LossWatch();
  #inForce: string;

  constructor(native: CongestionNative, chosen: string, onLoss: (what: string) => void) {
    this.#native = native;
    this.#onLoss = onLoss;
    this.#inForce = chosen;
  }

  get congestionControl(): string {
    return this.#inForce;
  }

  review(descriptor: number): void {
    if (this.#watch === undefined || !this.#native.socketSegments(descriptor, this.#counts)) return;
    const [sent, resent] = this.#counts;
    if (!this.#watch.isLossy(sent, resent, isLong(this.#native, descriptor) ? lossyWindowsOfLongPath : lossyWindows)) return;
    // A congestion control that is not granted now will not be later, so the watch ends.
    this.#watch = undefined;
    const before = this.#inForce;
    this.#inForce = this.#native.congestionControl(descriptor, ['bbr']) ?? before;
    const stays = `${before} stays, because the system does not grant bbr`;
    const outcome = isBbr(this.#inForce) ? `${this.#inForce} takes over from ${before}` : stays;
    this.#onLoss(`loses packets again and again, ${resent} of ${sent} were sent twice: ${outcome}`);
  }
}

/** Segments of a window: at a loss of 0.3 % half of the windows or more have one. */
const windowSegments = 256;
/** Number of past windows that are considered, and how many of them must have lost. */
const [windows, lossyWindows, lossyWindowsOfLongPath] = [16, 12, 2];

/** Tells links that lose packets all the time from those that fill a queue now and then, or whose process was late to read: these resend
 *  hundreds of segments at once and then none for long. So the number of windows with a loss counts, not the number of segments. */
export class LossWatch {
  #sent = 0;
  #resent = 0;
  /** Whether there was a loss, by window; the latest one first. */
  #history: readonly boolean[] = [];

  /** @param sent segments that the socket has sent so far, repeated ones included. @param resent repeated ones. @param least windows
   *  of the last 16 that must have lost. */
  isLossy(sent: number, resent: number, least = lossyWindows): boolean {
    if (sent - this.#sent < windowSegments) return false;
    this.#history = [resent > this.#resent, ...this.#history].slice(0, windows);
    this.#sent = sent;
    this.#resent = resent;
    return this.#history.filter(Boolean).length >= least;
  }
}
