// The version of the addon's interface, made from its sources: names and arguments of its functions, and the layout that the step
// machine shares with JavaScript. binding.gyp compiles it in; `npm run docs` writes it to src/memory/native-interface.ts, and the
// loader refuses an addon of another one. Run by itself it prints the version.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** Paths of the addon's sources: in native/, and for each optional carrier in a folder of that name beside its TypeScript. */
export function nativeSources(folder) {
  const paths = ['native', 'src'].flatMap((top) =>
    readdirSync(join(folder, top), { recursive: true, encoding: 'utf8' }).map((name) => join(top, name)),
  );
  return paths.filter((path) => basename(dirname(path)) === 'native' && /\.(cc|h|gyp)$/.test(path)).sort();
}

export function nativeInterface() {
  const read = (path) => readFileSync(join(root, path), 'utf8');
  const parts = [read('native/step_machine.h'), /^enum Opcode.*$/m.exec(read('native/step_machine.cc'))?.[0] ?? ''];
  const paths = nativeSources(root).filter((path) => path.endsWith('.cc'));
  for (const path of paths.sort((a, b) => (basename(a) < basename(b) ? -1 : 1))) {
    const text = read(path);
    for (const [line, called] of text.matchAll(/^\/\/\/ (\w+)\(.*(?:\n\/\/\/ .*)*/gm)) if (text.includes(`"${called}"`)) parts.push(line);
    for (const [, called] of text.matchAll(/set_function\(env, \w+, ("\w+")/g)) parts.push(called);
  }
  return createHash('sha256').update(parts.join('\n')).digest('hex').slice(0, 12);
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) console.log(nativeInterface());
