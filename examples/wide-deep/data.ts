/** Examples for a ranking model: clicks with dense numbers and many categorical columns. Two sources: a seeded generator whose best
 *  possible AUC is known, and files of the Criteo challenge (TSV: label, 13 numbers, 26 hexadecimal categories). */
import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { seededRandom } from 'shoal/ddp';
import { normal } from '../ranking/random.ts';

export interface Batch {
  /** [size] 0 or 1 */
  readonly labels: Float32Array;
  /** [size, dense] */
  readonly dense: Float32Array;
  /** Ids of each column: [size] */
  readonly ids: readonly Int32Array[];
  /** The logit that the generator drew each example's label by. */
  readonly logits?: Float32Array;
}

export interface Source {
  readonly denseCount: number;
  /** Categories of each column. */
  readonly vocabularies: readonly number[];
  batch(size: number): Batch;
}

/** The truth is a sum of weights, one per category, and a product with the dense numbers: what the model can learn, and no more.
 *  @param truth seed of the weights, the same for all workers. @param stream seed of the examples. */
export function generator(options: { columns: number; vocabulary: number; dense: number; truth: number; stream: number }): Source {
  const { columns, vocabulary, dense, truth, stream } = options;
  const weights = seededRandom(truth);
  const scale = 1.4 / Math.sqrt(columns + dense);
  const tables = Array.from({ length: columns }, () => Float64Array.from({ length: vocabulary }, () => scale * normal(weights)));
  const slopes = Float64Array.from({ length: dense }, () => scale * normal(weights));
  const random = seededRandom(stream);
  const batch = (size: number): Batch => {
    const made = {
      labels: new Float32Array(size),
      dense: new Float32Array(size * dense),
      ids: tables.map(() => new Int32Array(size)),
      logits: new Float32Array(size),
    };
    for (let row = 0; row < size; row++) {
      let logit = -0.5;
      for (let k = 0; k < dense; k++) {
        const value = normal(random);
        made.dense[row * dense + k] = value;
        logit += slopes[k] * value;
      }
      tables.forEach((table, column) => {
        // Few categories are common, most are rare.
        const id = Math.floor(vocabulary * random.next() ** 2);
        made.ids[column][row] = id;
        logit += table[id];
      });
      made.logits[row] = logit;
      made.labels[row] = Number(random.next() < 1 / (1 + Math.exp(-logit)));
    }
    return made;
  };
  return { denseCount: dense, vocabularies: tables.map(() => vocabulary), batch };
}

const criteoDense = 13;
const criteoColumns = 26;

/** Every `shards`-th line from `shard` on, again from the beginning at the end of the file; categories are hashed. */
export function criteo(options: { path: string; shard: number; shards: number; vocabulary: number }): Source {
  const { path, shard, shards, vocabulary } = options;
  const lines = examplesOf(path);
  let number = -1;
  const next = (): string[] => {
    for (;;) {
      const fields = lines.next().value as string[];
      number++;
      if (number % shards === shard) return fields;
    }
  };
  const batch = (size: number): Batch => {
    const made = {
      labels: new Float32Array(size),
      dense: new Float32Array(size * criteoDense),
      ids: Array.from({ length: criteoColumns }, () => new Int32Array(size)),
    };
    for (let row = 0; row < size; row++) {
      const fields = next();
      made.labels[row] = Number(fields[0]);
      for (let k = 0; k < criteoDense; k++) {
        const value = Number(fields[1 + k] || 0);
        made.dense[row * criteoDense + k] = Math.sign(value) * Math.log1p(Math.abs(value));
      }
      made.ids.forEach((column, k) => {
        column[row] = hash(fields[1 + criteoDense + k], k) % vocabulary;
      });
    }
    return made;
  };
  return { denseCount: criteoDense, vocabularies: Array.from({ length: criteoColumns }, () => vocabulary), batch };
}

/** FNV-1a. */
function hash(text: string, seed: number): number {
  let value = (2166136261 ^ seed) >>> 0;
  for (let k = 0; k < text.length; k++) value = Math.imul(value ^ text.charCodeAt(k), 16777619) >>> 0;
  return value;
}

/** The fields of each line that is an example; without an end. @throws Error for a file without any. */
function* examplesOf(path: string): Generator<string[]> {
  for (;;) {
    let count = 0;
    for (const line of linesOf(path)) {
      const fields = line.split('\t');
      if (fields.length !== 1 + criteoDense + criteoColumns || !/^[01]$/.test(fields[0])) continue;
      count++;
      yield fields;
    }
    if (count === 0)
      throw new Error(
        `${path} has no lines of a label (0 or 1), ${criteoDense} numbers and ${criteoColumns} categories, with tabs between them`,
      );
  }
}

function* linesOf(path: string): Generator<string> {
  if (!statSync(path).isFile()) throw new Error(`${path} is not a regular file`);
  const bytes = Buffer.alloc(1 << 20);
  const file = openSync(path, 'r');
  try {
    let rest = '';
    for (let read = readSync(file, bytes); read > 0; read = readSync(file, bytes)) {
      const lines = (rest + bytes.toString('latin1', 0, read)).split('\n');
      rest = lines.pop() ?? '';
      yield* lines;
    }
    if (rest !== '') yield rest;
  } finally {
    closeSync(file);
  }
}
