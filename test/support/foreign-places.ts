/** Commands that start a program where it cannot map memory of this process, nor this process its, although both are on one machine. */
import { spawnSync } from 'node:child_process';

export interface ForeignPlace {
  /** `in a container`, with the reason if there is none. */
  readonly where: string;
  /** The command that starts the program. */
  readonly within: readonly string[];
  readonly missing: boolean;
}

export function foreignPlaces(): ForeignPlace[] {
  const places = [
    { where: 'in a container', within: ['unshare', '--pid', '--ipc', '--mount', '--fork', '--mount-proc', '--kill-child'] },
    { where: 'of another user', within: ['setpriv', '--reuid', '65534', '--clear-groups'] },
  ];
  return places.map(({ where, within: [program, ...args] }) => {
    const { status, stderr } = spawnSync(program, [...args, 'true'], { encoding: 'utf8' });
    const why = status === 0 ? '' : ` (skipped: ${program} does not work: ${(stderr ?? '').trim() || 'it is not installed'})`;
    return { where: `${where}${why}`, within: [program, ...args], missing: status !== 0 };
  });
}
