/** The command line of a program of this folder. `--help` prints the comment that the program's file begins with; an error is
 *  told in one line, with exit code 2. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs, type ParseArgsConfig } from 'node:util';
import { messageOf } from '../src/base/errors.ts';

/** @param file `import.meta.url` of the program. Ends the process after `--help` and for options that are not among `options`. */
export function programArguments<const C extends ParseArgsConfig>(file: string, config: C): ReturnType<typeof parseArgs<C>> {
  const args = process.argv.slice(2);
  // The arguments after `--` are a command of its own.
  const own = args.includes('--') ? args.slice(0, args.indexOf('--')) : args;
  if (own.includes('--help')) {
    console.log(opening(readFileSync(fileURLToPath(file), 'utf8')));
    process.exit(0);
  }
  try {
    return parseArgs(config);
  } catch (error) {
    console.error(`${messageOf(error)} (--help says what there is)`);
    process.exit(2);
  }
}

/** The text of the comment at the beginning of a file. */
function opening(source: string): string {
  return source
    .slice(source.indexOf('/**') + 3, source.indexOf('*/'))
    .split('\n')
    .map((line) => line.replace(/^ \* ? ?/, ''))
    .join('\n')
    .trim();
}

/** The program `shoal` of a built checkout in `folder`, which may be of an earlier commit. */
export function programOf(folder: string): string {
  const { bin } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { bin: { shoal: string } };
  return join(folder, bin.shoal);
}
