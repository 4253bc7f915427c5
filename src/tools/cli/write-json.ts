/** Writes the results of commands. */
import { writeFileAt } from '../../base/files/write-file.ts';

/** Writes the value as JSON for people and programs, making the folder; `-` is standard output.
 *  @throws ShoalError `system` when the file cannot be written. */
export function writeJson(file: string, value: unknown): void {
  const text = `${JSON.stringify(value, null, 2)}\n`;
  if (file === '-') process.stdout.write(text);
  else writeFileAt(file, text);
}
