/** Counted lines: lines that hold code other than import statements; comments and blank lines do not count. Pure. */
import { parseSync } from 'oxc-parser';

/** The number of counted lines of one file. */
export function countedLines({ path, text }: { readonly path: string; readonly text: string }): number {
  const { program, comments } = parseSync(path, text);
  const imports = program.body.filter(({ type }) => type === 'ImportDeclaration');
  let code = '';
  let end = 0;
  for (const left of [...comments, ...imports].toSorted((a, b) => a.start - b.start)) {
    // The line breaks of a removed part stay, so that code before and after it is on two lines.
    code += text.slice(end, left.start) + text.slice(left.start, left.end).replace(/[^\n]/g, '');
    end = left.end;
  }
  return (code + text.slice(end)).split('\n').filter((line) => line.trim() !== '').length;
}

/** The counted lines below each folder that `files` lie in. */
export function linesByFolder(files: readonly { readonly path: string; readonly text: string }[]): Map<string, number> {
  const lines = new Map<string, number>();
  for (const file of files) {
    const counted = countedLines(file);
    const parts = file.path.split('/').slice(0, -1);
    for (let length = 1; length <= parts.length; length++) {
      const folder = parts.slice(0, length).join('/');
      lines.set(folder, (lines.get(folder) ?? 0) + counted);
    }
  }
  return lines;
}
