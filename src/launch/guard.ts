/** Sees to it that no process of a job outlives its launcher, even one that was killed with SIGKILL.
 *
 *  The guard is a small shell process in a session of its own that holds the reading end of a pipe. Every rank's process
 *  tells it its process group before it becomes the rank, so there is no moment at which a rank runs unguarded. When the
 *  last writing end is closed, by the launcher or by its death, the guard ends the groups it knows, and itself:
 *
 *      launcher ──────────── pipe ────────────▶ guard        "+ 4711"  a rank's group
 *         │ spawn                                 ▲          "- 4711"  it is gone, whole
 *         └──▶ shoal-rank: own group, "+ 4711" ───┘          end       SIGTERM, at most 2 s, SIGKILL
 *               exec node train.js
 *
 *  Groups, so that processes a rank has started end with it, unless they make a session of their own. Works for any
 *  program and does not need its event loop; a preloaded watcher inside the rank would not notice while it computes.
 *
 *  Where guard and launcher are killed at once, the kernel sends the ranks SIGTERM, as `shoal-rank` has asked it to.
 *
 *  `shoal-rank` (native/rank_start.cc) leaves ranks in the launcher's session. Where it is not built, a shell takes its place,
 *  which has no command for a group without a session: then each rank gets both, and ranks that outnumber the CPUs wait longer
 *  for each other. */
import { spawn, type ChildProcess } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import type { Socket } from 'node:net';
import type { Environment } from '../base/settings/settings.ts';
import { nativeUnavailableReason, rankProgram } from '../memory/native.ts';

const guardScript = `
trap '' INT TERM HUP PIPE
groups=
while read -r verb group; do
  case $verb in
    +) groups="$groups $group" ;;
    -) kept=; for g in $groups; do [ "$g" = "$group" ] || kept="$kept $g"; done; groups=$kept ;;
  esac
done
[ -n "$groups" ] || exit 0
for g in $groups; do kill -s TERM -- "-$g"; done 2>/dev/null
tries=0
while [ "$tries" -lt 20 ]; do
  alive=
  for g in $groups; do kill -s 0 -- "-$g" 2>/dev/null && alive=1; done
  [ -n "$alive" ] || exit 0
  sleep 0.1
  tries=$((tries + 1))
done
for g in $groups; do kill -s KILL -- "-$g"; done 2>/dev/null
exit 0
`;

/** Registers its own process with the guard on descriptor 3, then becomes the program. */
const rankScript = 'echo "+ $$" >&3; exec 3>&-; exec "$@"';

/** A process to start. */
export interface GuardedCommand {
  /** Program and arguments. */
  readonly command: readonly string[];
  readonly directory: string;
  readonly environment: Environment;
  /** It reads what the launcher's standard input has; otherwise, it has none. */
  readonly readsStdin: boolean;
}

/** A process that was started; as of `child_process`. */
export type GuardedProcess = Pick<ChildProcess, 'pid' | 'stdout' | 'stderr' | 'once' | 'kill'>;

/** Starts, signals and ends the processes of a job. */
export interface Guard {
  /** Starts the process in a group of its own: signals from the terminal reach the launcher alone, which forwards them once. */
  spawn(command: GuardedCommand): GuardedProcess;
  /** Signals a whole process group. False when it has no member. */
  signal(group: number, signal: NodeJS.Signals | 0): boolean;
  /** The group has no member any more. */
  forget(group: number): void;
  /** Ends whatever is left of the groups; resolves when nothing is. */
  end(): Promise<void>;
}

/** Starts a guard. It must be ended, or dies with us. */
export function startGuard(): Guard {
  const child: ChildProcess = spawn('/bin/sh', ['-c', guardScript, 'shoal-guard'], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
  const pipe = child.stdin as Socket;
  const hasRankProgram = nativeUnavailableReason() === undefined && isExecutable(rankProgram);
  // The guard was killed: the ranks go on, and end as usual.
  pipe.on('error', () => undefined);
  const gone = new Promise<void>((resolve) => {
    child.on('exit', () => resolve());
    child.on('error', () => resolve());
  });
  return {
    spawn: ({ command, directory: cwd, environment: env, readsStdin }) => {
      const [program, args] = hasRankProgram ? [rankProgram, command] : ['/bin/sh', ['-c', rankScript, 'shoal-rank', ...command]];
      // The shell must be started in a session of its own; the program makes its group itself, soon after it has started.
      return spawn(program, args, {
        cwd,
        env,
        detached: !hasRankProgram,
        stdio: [readsStdin ? 'inherit' : 'ignore', 'pipe', 'pipe', pipe],
      });
    },
    signal: signalGroup,
    forget: (group) => void pipe.write(`- ${group}\n`),
    end: async () => {
      pipe.end();
      await gone;
    },
  };
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** Signals a whole process group. False when it has no member. */
function signalGroup(group: number, signal: NodeJS.Signals | 0): boolean {
  try {
    process.kill(-group, signal);
    return true;
  } catch {
    return false;
  }
}
