/** Tables of text. */

/** The lines, with columns as wide as their widest cells. @param isText whether a column's cells begin, and not end, at its edge. */
export function inColumns(lines: readonly (readonly string[])[], isText: (column: number) => boolean = () => false): string[] {
  const widths = lines[0].map((_, column) => Math.max(...lines.map((line) => line[column].length)));
  const padded = (cell: string, column: number): string => (isText(column) ? cell.padEnd(widths[column]) : cell.padStart(widths[column]));
  return lines.map((line) => line.map(padded).join('  '));
}
