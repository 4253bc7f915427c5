/** The ways of a rank's two output streams, to the console and to files: torchrun's `--redirects`, `--tee`,
 *  `--log-dir` and `--local-ranks-filter`. Pure. */
import { ShoalError } from '../../base/errors.ts';

export type Stream = 'stdout' | 'stderr';

export interface Route {
  readonly console: boolean;
  readonly file: boolean;
}

export interface RouteOptions {
  /** Per-rank files go here; undefined: none. */
  readonly logDir?: string;
  /** `0` none, `1` stdout, `2` stderr, `3` both, or per local rank: `0:3,1:1`. To the file only. */
  readonly redirects?: string;
  /** Like `redirects`, but to the file and to the console. Default with a log directory: 3. */
  readonly tee?: string;
  /** `0,2`: only these local ranks write to the console. */
  readonly localRanksFilter?: string;
}

/** The route of every stream of every one of `localSize` local ranks.
 *  @throws ShoalError `usage`. */
export function parseRoutes(options: RouteOptions, localSize: number): (localRank: number, stream: Stream) => Route {
  const { logDir } = options;
  if (logDir === undefined && (options.redirects !== undefined || options.tee !== undefined)) {
    throw new ShoalError('usage', '--redirects and --tee write files; say where with --log-dir');
  }
  const redirects = parseStreams('--redirects', { text: options.redirects ?? '0', localSize });
  const teeDefault = logDir === undefined || options.redirects !== undefined ? '0' : '3';
  const tee = parseStreams('--tee', { text: options.tee ?? teeDefault, localSize });
  const shown = options.localRanksFilter === undefined ? undefined : new Set(parseRanks(options.localRanksFilter, localSize));
  return (localRank, stream) => {
    const redirected = redirects(localRank, stream);
    const copied = tee(localRank, stream);
    return { file: redirected || copied, console: (copied || !redirected) && (shown?.has(localRank) ?? true) };
  };
}

function parseStreams(
  flag: string,
  { text, localSize }: { text: string; localSize: number },
): (localRank: number, stream: Stream) => boolean {
  const common = /^[0-3]$/.exec(text) === null ? undefined : Number(text);
  const perRank = new Map<number, number>();
  if (common === undefined) {
    for (const item of text.split(',')) {
      const match = /^(\d{1,6}):([0-3])$/.exec(item.trim());
      if (match === null)
        throw new ShoalError('usage', `${flag} '${text}': expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or per local rank: 0:3,1:1`);
      perRank.set(localRankOf(flag, { text: match[1], localSize }), Number(match[2]));
    }
  }
  return (localRank, stream) => ((common ?? perRank.get(localRank) ?? 0) & (stream === 'stdout' ? 1 : 2)) !== 0;
}

function parseRanks(text: string, localSize: number): number[] {
  return text.split(',').map((item) => {
    if (!/^\d{1,6}$/.test(item.trim())) throw new ShoalError('usage', `--local-ranks-filter '${text}': expected local ranks like 0,2`);
    return localRankOf('--local-ranks-filter', { text: item, localSize });
  });
}

function localRankOf(flag: string, { text, localSize }: { text: string; localSize: number }): number {
  const rank = Number(text);
  if (rank < localSize) return rank;
  throw new ShoalError('usage', `${flag} names local rank ${rank}; the local ranks are 0…${localSize - 1}`);
}
