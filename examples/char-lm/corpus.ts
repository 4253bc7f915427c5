/** Real text as character tokens. Where it comes from, in this order: the files the user names; the licence texts of the
 *  system; the copyright files of its packages; this project's own documents. Same files, same tokens, on every rank.
 *
 *   text   ├──────────────── training, 90 % ────────────────┤── held out ──┤
 *   window i of the training part: context + 1 characters from i · context, so that each one is a target once */
import type { DistributedSampler } from 'shoal/ddp';
import { existsSync, readdirSync, readFileSync, realpathSync, statSync } from 'node:fs';
import { join, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface Corpus {
  /** Files in the order in which they were read. */
  readonly files: readonly string[];
  /** Character of each token; token 0 stands for every character that is not in the vocabulary. */
  readonly vocabulary: readonly string[];
  readonly training: Int32Array;
  readonly heldOut: Int32Array;
}

export interface CorpusOptions {
  /** Files to read: paths, or patterns with `*`, `?` and `**`. Empty: text that is on the machine already. */
  readonly patterns: readonly string[];
  /** Most characters to read. */
  readonly charactersMax: number;
  /** Most distinct characters, the unknown one included. */
  readonly vocabularyMax: number;
}

const project = fileURLToPath(new URL('../..', import.meta.url));
const found: readonly (readonly string[])[] = [
  ['/usr/share/common-licenses/*'],
  ['/usr/share/doc/*/copyright'],
  [`${project}*.md`, `${project}docs/*.md`],
];

/** Fewer characters than this teach nothing. */
const charactersMin = 20_000;

/** @throws Error when the named files, or all the places looked at, hold too little text. */
export function loadCorpus({ patterns, charactersMax, vocabularyMax }: CorpusOptions): Corpus {
  for (const candidates of patterns.length > 0 ? [patterns] : found) {
    const files: string[] = [];
    let text = '';
    for (const file of candidates.flatMap((pattern) => matchingFiles(pattern))) {
      if (text.length >= charactersMax) break;
      const content = readFileSync(file, 'utf8');
      // A file that is not text would fill the vocabulary with noise.
      if (content.includes('\0') || files.includes(file)) continue;
      files.push(file);
      // Form feeds are page breaks, and upset terminals.
      text += content.replaceAll('\f', '\n').slice(0, charactersMax - text.length);
    }
    if (text.length >= charactersMin) return tokenize(files, text, vocabularyMax);
    if (patterns.length > 0)
      throw new Error(`${patterns.join(', ')}: ${text.length} characters in ${files.length} files; at least ${charactersMin} are needed`);
  }
  throw new Error(`no text in ${found.flat().join(', ')}; name some files with --text`);
}

function tokenize(files: readonly string[], text: string, vocabularyMax: number): Corpus {
  const characters = Array.from(text);
  const boundary = Math.floor(characters.length * 0.9);
  const counts = new Map<string, number>();
  for (const character of characters.slice(0, boundary)) counts.set(character, (counts.get(character) ?? 0) + 1);
  const frequent = [...counts].toSorted(([a, m], [b, n]) => n - m || (a < b ? -1 : 1)).slice(0, vocabularyMax - 1);
  const vocabulary = ['\ufffd', ...frequent.map(([character]) => character)];
  const tokenOf = new Map(vocabulary.map((character, token) => [character, token]));
  const tokens = Int32Array.from(characters, (character) => tokenOf.get(character) ?? 0);
  return { files, vocabulary, training: tokens.subarray(0, boundary), heldOut: tokens.subarray(boundary) };
}

/** Windows of `context` characters and their successors in `tokens`. */
export function windowCount(tokens: Int32Array, context: number): number {
  return Math.floor((tokens.length - 1) / context);
}

/** The windows `items` as [inputs, targets], both [items, context], row-major. */
export function windows(tokens: Int32Array, items: readonly number[], context: number): [Int32Array, Int32Array] {
  const inputs = new Int32Array(items.length * context);
  const targets = new Int32Array(items.length * context);
  for (const [row, item] of items.entries()) {
    inputs.set(tokens.subarray(item * context, (item + 1) * context), row * context);
    targets.set(tokens.subarray(item * context + 1, (item + 1) * context + 1), row * context);
  }
  return [inputs, targets];
}

/** Whole batches of a rank's windows, one epoch after the other, without end. */
export function* batchesOf(
  { training }: Corpus,
  sampler: DistributedSampler,
  { batch, context }: { readonly batch: number; readonly context: number },
): Generator<[Int32Array, Int32Array], never> {
  for (let { epoch } = sampler; ; epoch++) {
    sampler.setEpoch(epoch);
    if (sampler.stateDict().position === 0 && sampler.length < batch)
      throw new Error(`the text has ${sampler.length} windows per process, fewer than a batch of ${batch}`);
    for (const items of sampler.batches(batch)) if (items.length === batch) yield windows(training, items, context);
  }
}

/** Nats per character of the held-out text when each character is predicted by its frequency in the training text (plus
 *  one, so that unseen ones have a probability): what a model must beat that looks at no context. */
export function unigramLoss({ vocabulary, training, heldOut }: Corpus): number {
  const counts = new Float64Array(vocabulary.length).fill(1);
  for (const token of training) counts[token]++;
  const total = training.length + vocabulary.length;
  return heldOut.reduce((sum, token) => sum - Math.log(counts[token] / total), 0) / heldOut.length;
}

/** Files that match, by path; one that several links lead to once, under its own path. A path without wildcards must exist. */
function matchingFiles(pattern: string): string[] {
  const path = resolve(pattern);
  if (!/[*?]/.test(path)) {
    if (!statSync(path).isFile()) throw new Error(`${path} is not a regular file; name text files`);
    return [realpathSync(path)];
  }
  const files = expand(sep, path.split(sep).filter(Boolean)).map((file) => realpathSync(file));
  return [...new Set(files)].filter((file) => statSync(file).isFile()).toSorted();
}

/** Existing paths below `folder` along `parts`: `*` and `?` stay within a name, `**` spans folders. */
function expand(folder: string, parts: readonly string[]): string[] {
  if (parts.length === 0) return [folder];
  const [part, ...rest] = parts;
  if (!/[*?]/.test(part)) return existsSync(join(folder, part)) ? expand(join(folder, part), rest) : [];
  const entries = statSync(folder).isDirectory() ? readdirSync(folder, { withFileTypes: true }) : [];
  if (part === '**') {
    const folders = entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(folder, name));
    return [...expand(folder, rest), ...folders.flatMap((below) => expand(below, parts))];
  }
  const source = part.replace(/[*?]|[.+^${}()|[\]\\]/g, (c) => ({ '*': '.*', '?': '.' })[c] ?? `\\${c}`);
  const matches = new RegExp(`^${source}$`, 's');
  return entries.filter(({ name }) => matches.test(name)).flatMap(({ name }) => expand(join(folder, name), rest));
}
