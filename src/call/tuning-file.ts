/** Reads the file that `shoal tune` writes. collectives/tuning-format.ts knows its format. */
import { createHash } from 'node:crypto';
import { messageOf, ShoalError } from '../base/errors.ts';
import { readRegularFileSync } from '../base/files/read-file.ts';
import { parseTuning, tuningBytesMax, type Tuning } from '../collectives/tuning-format.ts';

export interface LoadedTuning {
  readonly tuning: Tuning;
  /** Tells files apart: ranks compare it when they meet. */
  readonly hash: string;
}

/** @throws ShoalError `config` when it cannot be read or is not a tuning file. */
export function loadTuning(path: string): LoadedTuning {
  let text: string;
  try {
    text = readRegularFileSync(path, { bytesMax: tuningBytesMax }).toString();
  } catch (cause) {
    throw new ShoalError('config', `SHOAL_TUNING_FILE ${path} cannot be read: ${messageOf(cause)}; shoal tune writes one`, { cause });
  }
  return { tuning: parseTuning(text, path), hash: createHash('sha256').update(text).digest('hex').slice(0, 16) };
}
