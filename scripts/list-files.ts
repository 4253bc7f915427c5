/** Prints the files below a folder of src, each with the first sentence of its head: the map of a folder as it is now.
 *
 *    npx tsx scripts/list-files.ts [group/fast] */
import { isProduction } from './house-rules.ts';
import { readSources } from './repository.ts';

const [folder = ''] = process.argv.slice(2);
const below = `src/${folder}`.replace(/\/+$/, '');
const files = readSources().filter(({ path }) => isProduction(path) && path.startsWith(`${below}/`));
const width = Math.max(0, ...files.map(({ path }) => path.length));
for (const { path, text } of files) console.log(`${path.padEnd(width)}  ${firstSentence(text)}`);
if (files.length === 0) throw new Error(`${below} has no files`);

/** The first sentence of the comment at the top of a file. */
function firstSentence(text: string): string {
  const [, head = ''] = /^(?:#!.*\n)?\/\*\*([\s\S]*?)\*\//.exec(text) ?? [];
  const words = head.replaceAll(/\n \*/g, ' ').replaceAll(/\s+/g, ' ').trim();
  return /^.*?\.(?= |$)/.exec(words)?.[0] ?? words;
}
