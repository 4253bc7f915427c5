/** The comparisons of the messaging benchmark, and their results. */

export interface Sample {
  readonly comparison?: string;
  readonly subject: string;
  readonly bytes: number;
  /** `rate`: messages per second. `roundTripUs`: microseconds. */
  readonly what: 'rate' | 'roundTripUs';
  readonly median: number;
  readonly min: number;
  readonly max: number;
}

interface Comparison {
  readonly name: string;
  /** Subjects, measured in turns by the same two processes. */
  readonly subjects: readonly string[];
  ratiosOf(samples: readonly Sample[]): Record<string, number>;
}

export const smallBytes = 64;
export const largeBytes = 2 ** 20;

const fabrics = ['fabric shm copy', 'fabric shm borrow', 'fabric tcp copy', 'fabric tcp borrow'] as const;

export const comparisons: readonly Comparison[] = [
  ...['curve', 'plain'].map((mode): Comparison => ({
    name: `tcp ${mode}`,
    subjects: [`tcp ${mode}`, `zeromq ${mode}`],
    ratiosOf: (samples) =>
      Object.fromEntries(
        [smallBytes, largeBytes].flatMap((bytes) =>
          (['rate', 'roundTripUs'] as const).map((what) => [
            `tcp ${mode}, ${bytes} B: ${what} over zeromq`,
            ratio(samples, [`tcp ${mode}`, `zeromq ${mode}`], bytes, what),
          ]),
        ),
      ),
  })),
  {
    name: 'inproc',
    subjects: ['inproc', 'postMessage'],
    ratiosOf: (samples) => ({
      'inproc, 64 B: round trips over postMessage': ratio(samples, ['postMessage', 'inproc'], smallBytes, 'roundTripUs'),
    }),
  },
  {
    name: 'fabric',
    subjects: [...fabrics, 'tcp curve', 'tcp plain'],
    ratiosOf: (samples) =>
      Object.fromEntries(
        fabrics
          .filter((subject) => samples.some((sample) => sample.subject === subject))
          .flatMap((subject) => [
            [`${subject}, 1 MiB: rate over tcp`, ratio(samples, [subject, 'tcp curve'], largeBytes, 'rate')],
            [`${subject}, 1 MiB: rate over tcp without encryption`, ratio(samples, [subject, 'tcp plain'], largeBytes, 'rate')],
          ]),
      ),
  },
];

function ratio(samples: readonly Sample[], [a, b]: readonly [string, string], bytes: number, what: Sample['what']): number {
  const median = (subject: string): number =>
    samples.find((each) => each.subject === subject && each.bytes === bytes && each.what === what)?.median ?? Number.NaN;
  return Number((median(a) / median(b)).toPrecision(3));
}
