/** Commands that start a program where it cannot map memory of this process, nor this process its, although both are on one machine. */
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

export interface ForeignPlace {
  /** `in a container`, with the reason if there is none. */
  readonly where: string;
  /** The command that starts the program. */
  readonly within: readonly string[];
  readonly missing: boolean;
}

/** A command that ends with 0 where the files of this package can be read. Folders above may be closed to other users. */
export const readingThisPackage: readonly [program: string, ...args: string[]] = [
  'test',
  '-r',
  fileURLToPath(new URL('../../package.json', import.meta.url)),
];

export function foreignPlaces(): ForeignPlace[] {
  const places = [
    { where: 'in a container', within: ['unshare', '--pid', '--ipc', '--mount', '--fork', '--mount-proc', '--kill-child'] },
    { where: 'of another user', within: ['setpriv', '--reuid', '65534', '--clear-groups'] },
  ];
  return places.map(({ where, within: [program, ...args] }) => {
    const { status, stderr } = spawnSync(program, [...args, ...readingThisPackage], { encoding: 'utf8' });
    const cause = status === 1 && stderr === '' ? 'it cannot read this folder' : (stderr ?? '').trim() || 'it is not installed';
    const why = status === 0 ? '' : ` (skipped: ${program} does not work: ${cause})`;
    return { where: `${where}${why}`, within: [program, ...args], missing: status !== 0 };
  });
}
