/** The rules of the house that no compiler knows: layers and rooms, who loads the addon, state, what a file
 *  looks like. Pure functions over parsed sources, so that the rules themselves are tested (test/repository/house-rules.test.ts). */
import { parseSync, type Program } from 'oxc-parser';
import { commentsOf, opensWithoutSubject } from './comment-openings.ts';
import { linesByFolder } from './counted-lines.ts';

export interface SourceFile {
  /** Path relative to the repository, with `/`. */
  readonly path: string;
  readonly text: string;
}

export interface Room {
  /** Folder below the layer's, or one file there (`a/b.ts`); `a/b` is a room of its own, apart from `a`. */
  readonly folder: string;
  readonly purpose: string;
  /** The thread that runs its code: `caller`, a program's thread, or `comm`, the comm thread. Default: both may. */
  readonly thread?: 'caller' | 'comm';
}

export interface Layer {
  /** Folder below src/. */
  readonly folder: string;
  /** A layer imports layers of smaller rank only. */
  readonly rank: number;
  readonly purpose: string;
  /** The ceiling of its counted lines (scripts/counted-lines.ts). It can only fall. */
  readonly linesMax: number;
  /** True: no input or output, hence no imports of Node's modules or of packages. */
  readonly pure?: boolean;
  /** Files that load it by `import()` when it is asked for, also from below; nobody else imports it. Default: it is no optional carrier. */
  readonly loadedBy?: readonly string[];
  /** Rooms from the top down: a room imports rooms below it only. Files beside the rooms are above all of them. Default: none. */
  readonly rooms?: readonly Room[];
}

/** A folder whose files must all be reachable from one file that lists them. */
export interface RegistryRule {
  readonly folder: string;
  readonly file: string;
  /** Files of the folder that are rightly not listed, with the reason. */
  readonly except?: Readonly<Record<string, string>>;
}

export interface LayerTable {
  readonly layers: readonly Layer[];
  readonly registries: readonly RegistryRule[];
}

export interface Violation {
  readonly path: string;
  readonly line: number;
  readonly rule: string;
  readonly message: string;
}

/** Most sources of a folder, tests and registered implementations apart: a larger folder needs rooms. */
const filesMax = 16;
/** Lines that a ceiling may stay above the code. */
const ceilingSlack = 200;
/** Share of a folder's comments that may open without a subject: the check does not know every good sentence. */
const openingsShare = 0.02;
const nativeLoader = 'src/memory/native.ts';

/** Environment variables of ours that a text names in quotes or as a property, such as `SHOAL_TRACE`. */
export function environmentNames(text: string): string[] {
  return [...text.matchAll(/(?<![A-Z0-9_])SHOAL_[A-Z0-9_]*[A-Z0-9](?![A-Z0-9_*])/g)].map(([name]) => name);
}

/** Every violation in `files`, which are all sources of the repository; in order of path and line. */
export function checkSources(files: readonly SourceFile[], table: LayerTable): Violation[] {
  const parsed = files.map(parse);
  const violations = [
    ...parsed.flatMap((file) => [
      ...checkLayers(file, table, new Set(files.map(({ path }) => path))),
      ...checkDates(file),
      ...checkNativeLoader(file),
      ...checkState(file),
      ...checkAppearance(file),
    ]),
    ...checkFolders(files, table),
    ...checkSizes(files, table),
    ...checkWords(files, table),
    ...checkRooms(parsed, table),
    ...checkThreads(parsed, table),
    ...checkCircles(parsed),
    ...checkRegistries(parsed, table),
  ];
  return violations.sort((a, b) => (a.path === b.path ? a.line - b.line : a.path < b.path ? -1 : 1));
}

/** One line per violation, as compilers print them. */
export function formatViolation({ path, line, rule, message }: Violation): string {
  return `${path}:${line}: ${rule}: ${message}`;
}

interface ParsedFile extends SourceFile {
  readonly program: Program;
  readonly imports: readonly { readonly specifier: string; readonly offset: number; readonly isLazy: boolean }[];
}

/** A syntax-tree node as the walk sees it. */
interface Node {
  readonly type: string;
  readonly start: number;
  readonly [key: string]: unknown;
}

function parse(file: SourceFile): ParsedFile {
  const { program, errors } = parseSync(file.path, file.text);
  if (errors.length > 0) throw new Error(`${file.path}: ${errors[0].message}`);
  const imports: { specifier: string; offset: number; isLazy: boolean }[] = [];
  walk(program, (node) => {
    const specifier = importedBy(node);
    if (specifier !== undefined) imports.push({ specifier, offset: node.start, isLazy: node.type === 'ImportExpression' });
  });
  return { ...file, program, imports };
}

const importTypes = new Set(['ImportDeclaration', 'ExportNamedDeclaration', 'ExportAllDeclaration', 'ImportExpression', 'TSImportType']);

/** The specifier of an import, in any form; `new URL('./x', import.meta.url)` starts threads. */
function importedBy(node: Node): string | undefined {
  if (importTypes.has(node.type)) return literal(node.source ?? node.argument);
  if (node.type !== 'NewExpression' || nameOf(node.callee) !== 'URL') return undefined;
  const [specifier, base] = node.arguments as unknown[];
  return dotted(base) === 'import.meta.url' ? literal(specifier) : undefined;
}

// ── layers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

function checkLayers(file: ParsedFile, table: LayerTable, known: ReadonlySet<string>): Violation[] {
  if (!file.path.startsWith('src/')) return [];
  const own = layerOf(file.path, table);
  return file.imports.flatMap(({ specifier, offset, isLazy }) => {
    const report = (message: string): Violation[] => [violation(file, offset, 'layers', message)];
    if (!specifier.startsWith('.')) {
      if (specifier === 'shoal' || specifier.startsWith('shoal/')) return report('the package does not import itself by name');
      return own?.pure && !isTest(file.path) ? report(`${own.folder} is pure and must not import ${specifier}`) : [];
    }
    const target = resolveRelative(file.path, specifier);
    // Threads are started from built JavaScript, also when the sources themselves are run.
    const source = known.has(target) ? target : target.replace(/^dist\//, 'src/').replace(/\.js$/, '.ts');
    // The addon has a rule of its own, the package's version is not code.
    if (source.startsWith('build/') || source === 'package.json') return [];
    if (!source.startsWith('src/')) return own === undefined ? [] : report(`${specifier} is outside src`);
    if (!known.has(source)) return report(`${specifier} does not exist`);
    if (isTest(source) && !isTest(file.path)) return report(`${specifier} is test code and is not built`);
    const other = layerOf(source, table);
    if (own === undefined) return [];
    if (other === undefined) return report(`${own.folder} must not import ${specifier}, which is above all layers`);
    if (other.folder === own.folder) return [];
    if (other.loadedBy !== undefined) {
      if (isLazy && other.loadedBy.includes(file.path)) return [];
      return report(`${other.folder} is optional: only ${other.loadedBy.join(' and ')} load it, by import()`);
    }
    if (other.rank < own.rank) return [];
    return report(`${own.folder} (rank ${own.rank}) must not import ${other.folder} (rank ${other.rank})`);
  });
}

function checkFolders(files: readonly SourceFile[], table: LayerTable): Violation[] {
  const folders = new Set(
    files.flatMap(({ path }) => (/^src\/.*\//.test(path) ? [layerOf(path, table)?.folder ?? path.split('/')[1]] : [])),
  );
  const listed = new Set(table.layers.map(({ folder }) => folder));
  const at = (message: string): Violation => ({ path: 'layers.json', line: 1, rule: 'layers', message });
  return [
    ...[...folders].filter((folder) => !listed.has(folder)).map((folder) => at(`src/${folder} is not in the table`)),
    ...[...listed].filter((folder) => !folders.has(folder)).map((folder) => at(`src/${folder} is in the table and does not exist`)),
  ];
}

/** No layer has more counted lines than its ceiling, which follows the code down. */
function checkSizes(files: readonly SourceFile[], table: LayerTable): Violation[] {
  const lines = linesByFolder(files.filter(({ path }) => isProduction(path)));
  const at = (message: string): Violation => ({ path: 'layers.json', line: 1, rule: 'size', message });
  return table.layers.flatMap(({ folder, linesMax }) => {
    const counted = lines.get(`src/${folder}`) ?? 0;
    if (counted > linesMax) return [at(`src/${folder} has ${counted} counted lines, its ceiling is ${linesMax}: make it smaller`)];
    if (linesMax - counted <= ceilingSlack) return [];
    return [at(`src/${folder} has ${counted} counted lines, its ceiling is ${linesMax}: npx tsx scripts/count-lines.ts --lower`)];
  });
}

/** Comments can be read alone. */
function checkWords(files: readonly SourceFile[], table: LayerTable): Violation[] {
  const folders = new Map<string, SourceFile[]>();
  for (const file of files) {
    const layer = layerOf(file.path, table);
    const folder = layer === undefined ? file.path.split('/')[0] : `src/${layer.folder}`;
    folders.set(folder, [...(folders.get(folder) ?? []), file]);
  }
  return [...folders].flatMap(([folder, sources]) => {
    const comments = sources.flatMap(({ path, text }) => commentsOf(text).map((comment) => ({ path, ...comment })));
    const open = comments.filter(({ text }) => opensWithoutSubject(text));
    if (open.length <= comments.length * openingsShare) return [];
    const advice = `opens without a subject, like ${open.length} of ${comments.length} in ${folder} (at most 2 %): say what it is`;
    return open.map(({ path, line, text }) => ({ path, line, rule: 'words', message: `"${text}" ${advice}` }));
  });
}

/** Rooms of a layer are in the order of the table, and no folder is so full that nobody finds anything. */
function checkRooms(files: readonly ParsedFile[], table: LayerTable): Violation[] {
  const found: Violation[] = [];
  const at = (message: string): void => void found.push({ path: 'layers.json', line: 1, rule: 'rooms', message });
  const known = new Set(files.map(({ path }) => path));
  for (const layer of table.layers) {
    const rooms = layer.rooms ?? [];
    const inside = files.filter(({ path }) => path.startsWith(`src/${layer.folder}/`));
    const roomOf = (path: string): number => indexOfRoom(path, layer.folder, rooms);
    for (const [index, { folder }] of rooms.entries()) {
      if (!inside.some(({ path }) => roomOf(path) === index)) at(`${layer.folder}/${folder} is in the table and has no file`);
    }
    for (const file of rooms.length === 0 ? [] : inside.filter(({ path }) => !isTest(path))) {
      const own = roomOf(file.path);
      const folder = file.path.slice(`src/${layer.folder}/`.length).split('/').slice(0, -1).join('/');
      if (own < 0 && folder !== '') at(`${layer.folder}/${folder} is not in the table`);
      for (const { specifier, offset } of file.imports) {
        const target = specifier.startsWith('.') ? resolveRelative(file.path, specifier) : '';
        if (own < 0 || !known.has(target) || !target.startsWith(`src/${layer.folder}/`)) continue;
        const other = roomOf(target);
        if (other >= own) continue;
        const above = other < 0 ? 'a file beside the rooms' : rooms[other].folder;
        found.push(violation(file, offset, 'rooms', `${layer.folder}/${rooms[own].folder} must not import ${above}, which is above it`));
      }
    }
  }
  const registered = new Set(table.registries.map(({ folder }) => folder));
  const full = new Map<string, number>();
  for (const { path } of files) {
    const folder = path.slice(0, path.lastIndexOf('/'));
    if (path.startsWith('src/') && !isTest(path) && !registered.has(folder)) full.set(folder, (full.get(folder) ?? 0) + 1);
  }
  for (const [folder, count] of full) if (count > filesMax) at(`${folder} has ${count} files; at most ${filesMax}, then it has rooms`);
  return found;
}

/** Code of one thread does not import code of the other, in any layer that tells threads apart; code of both imports neither. Files beside
 *  the rooms bring both together. */
function checkThreads(files: readonly ParsedFile[], table: LayerTable): Violation[] {
  return files.flatMap((file) => {
    const own = threadOf(file.path, table);
    if (own === undefined || isTest(file.path)) return [];
    return file.imports.flatMap(({ specifier, offset }) => {
      const target = specifier.startsWith('.') ? resolveRelative(file.path, specifier) : '';
      const other = threadOf(target, table);
      if (other === undefined || other === 'both' || other === own) return [];
      return [
        violation(file, offset, 'threads', `code of ${threadNames[own]} must not import ${specifier}, code of ${threadNames[other]}`),
      ];
    });
  });
}

const threadNames = { caller: 'the calling thread', comm: 'the comm thread', both: 'both threads' } as const;

/** The thread that runs a file; undefined where the layer does not tell threads apart, and beside its rooms. */
function threadOf(path: string, table: LayerTable): keyof typeof threadNames | undefined {
  const { folder, rooms = [] } = layerOf(path, table) ?? { folder: '' };
  const room = rooms[indexOfRoom(path, folder, rooms)] as Room | undefined;
  return room && rooms.some(({ thread }) => thread !== undefined) ? (room.thread ?? 'both') : undefined;
}

/** Index of the innermost room of a file; −1: beside the rooms. */
function indexOfRoom(path: string, layer: string, rooms: readonly Room[]): number {
  let best = -1;
  for (const [index, { folder }] of rooms.entries()) {
    const isInside = path === `src/${layer}/${folder}` || path.startsWith(`src/${layer}/${folder}/`);
    if (isInside && (best < 0 || folder.length > rooms[best].folder.length)) best = index;
  }
  return best;
}

/** No file imports itself by way of others, types included: two files that need each other are one, or three. */
function checkCircles(files: readonly ParsedFile[]): Violation[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  const done = new Set<ParsedFile>();
  const found: Violation[] = [];
  const visit = (file: ParsedFile, way: readonly ParsedFile[]): void => {
    if (done.has(file)) return;
    for (const { specifier, offset } of file.imports) {
      const next = specifier.startsWith('.') ? byPath.get(resolveRelative(file.path, specifier)) : undefined;
      if (next === undefined || next === file) continue;
      const from = [...way, file].indexOf(next);
      if (from < 0) visit(next, [...way, file]);
      else {
        const circle = [...way, file].slice(from).map(({ path }) => path);
        found.push(violation(file, offset, 'circles', `imports itself: ${[...circle, next.path].join(' → ')}`));
      }
    }
    done.add(file);
  };
  for (const file of files) if (file.path.startsWith('src/')) visit(file, []);
  return found;
}

/** A registry is one array in one file; a file beside it that it does not reach is dead. */
function checkRegistries(files: readonly ParsedFile[], table: LayerTable): Violation[] {
  const byPath = new Map(files.map((file) => [file.path, file]));
  return table.registries.flatMap(({ folder, file, except = {} }) => {
    const root = byPath.get(file);
    const missing = [file, ...Object.keys(except)].filter((path) => !byPath.has(path));
    if (root === undefined || missing.length > 0) {
      return missing.map((path) => ({ path: 'layers.json', line: 1, rule: 'registries', message: `${path} does not exist` }));
    }
    const reached = new Set<string>();
    const visit = (one: ParsedFile): void => {
      if (reached.has(one.path)) return;
      reached.add(one.path);
      for (const { specifier } of one.imports) {
        const next = specifier.startsWith('.') ? byPath.get(resolveRelative(one.path, specifier)) : undefined;
        if (next !== undefined) visit(next);
      }
    };
    visit(root);
    return files
      .filter(({ path }) => path.startsWith(`${folder}/`) && !isTest(path) && !reached.has(path) && !Object.hasOwn(except, path))
      .map((one) => violation(one, 0, 'registries', `not listed in ${file}`));
  });
}

function layerOf(path: string, { layers }: LayerTable): Layer | undefined {
  return layers.find(({ folder }) => path.startsWith(`src/${folder}/`));
}

// ── time, the addon, state, appearance ────────────────────────────────────────────────────────────────────────────────────

/** Only src/base reads the clock. The other ways to it are restricted globals and properties of the linter (.oxlintrc.json). */
function checkDates(file: ParsedFile): Violation[] {
  if (!file.path.startsWith('src/') || file.path.startsWith('src/base/')) return [];
  const found: Violation[] = [];
  walk(file.program, (node) => {
    if (node.type !== 'NewExpression' || nameOf(node.callee) !== 'Date' || (node.arguments as unknown[]).length > 0) return;
    found.push(violation(file, node.start, 'time', 'new Date() outside src/base; take a Clock as an argument'));
  });
  return found;
}

/** Everything works without the addon because one file decides whether it is there. */
function checkNativeLoader(file: ParsedFile): Violation[] {
  if (!file.path.startsWith('src/') || file.path === nativeLoader || isTest(file.path)) return [];
  const found: Violation[] = [];
  const report = (offset: number, what: string): void => {
    found.push(violation(file, offset, 'native-loader', `${what}: only ${nativeLoader} loads the addon`));
  };
  for (const { specifier, offset } of file.imports) if (/node-gyp-build|\.node$/.test(specifier)) report(offset, specifier);
  walk(file.program, (node) => {
    if (node.type === 'MemberExpression' && dotted(node) === 'process.dlopen') report(node.start, 'process.dlopen');
    if (literal(node)?.endsWith('.node') === true) report(node.start, literal(node) ?? '');
  });
  return found;
}

/** Two worlds must fit in one process: nothing at the top of a module changes. */
function checkState(file: ParsedFile): Violation[] {
  if (!file.path.startsWith('src/') || isTest(file.path)) return [];
  return (file.program.body as unknown as Node[]).flatMap((statement) => {
    const declaration = (statement.type === 'ExportNamedDeclaration' ? statement.declaration : statement) as Node | null;
    if (declaration?.type !== 'VariableDeclaration' || declaration.declare === true || declaration.kind === 'const') return [];
    return [violation(file, statement.start, 'no-global-state', 'a variable at the top of a module is shared by the whole process')];
  });
}

function checkAppearance(file: ParsedFile): Violation[] {
  const found: Violation[] = [];
  const report = (offset: number, rule: string, message: string): void => void found.push(violation(file, offset, rule, message));
  const name = file.path.split('/').at(-1) ?? '';
  if (/(^|[-.])(util|utils|helper|helpers|manager)([-.]|$)/.test(name)) report(0, 'file-name', `${name} says nothing: name the noun`);
  if (file.path.startsWith('src/') && !isTest(file.path) && !/^(#!.*\n)?\s*(\/\*\*|\/\/)/.test(file.text)) {
    report(0, 'header', 'the file does not begin with a comment that says what it is');
  }
  return found;
}

// ── trees and paths ─────────────────────────────────────────────────────────────────────────────────────────────────

/** Code that is built into the package. */
export function isProduction(path: string): boolean {
  return path.startsWith('src/') && !isTest(path);
}

/** Code that exists for tests and is not built. */
export function isTest(path: string): boolean {
  return /\.(test|bench|test-d)\.ts$|\/conformance\.ts$|\/testing\//.test(path) || path.startsWith('test/');
}

/** Resolves `src/a/b.ts` + `../c/d.ts` to `src/c/d.ts`. */
function resolveRelative(from: string, specifier: string): string {
  const parts = from.split('/').slice(0, -1);
  for (const part of specifier.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '.') parts.push(part);
  }
  return parts.join('/');
}

function violation(file: SourceFile, offset: number, rule: string, message: string): Violation {
  return { path: file.path, line: file.text.slice(0, offset).split('\n').length, rule, message };
}

function walk(value: unknown, visit: (node: Node, parent: Node | undefined) => void, parent?: Node): void {
  if (Array.isArray(value)) {
    for (const one of value) walk(one, visit, parent);
  } else if (isNode(value)) {
    visit(value, parent);
    for (const key of Object.keys(value)) walk(value[key], visit, value);
  }
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string';
}

function nameOf(value: unknown): string | undefined {
  return isNode(value) && value.type === 'Identifier' ? String(value.name) : undefined;
}

function literal(value: unknown): string | undefined {
  if (!isNode(value)) return undefined;
  if (value.type === 'TSLiteralType') return literal(value.literal);
  return value.type === 'Literal' && typeof value.value === 'string' ? value.value : undefined;
}

/** The text of `a.b.c`, also for `a['b'].c` and optional chains; undefined for anything computed. */
function dotted(value: unknown): string | undefined {
  if (!isNode(value)) return undefined;
  if (value.type === 'ChainExpression') return dotted(value.expression);
  if (value.type === 'MetaProperty') return 'import.meta';
  if (value.type !== 'MemberExpression') return nameOf(value);
  const object = dotted(value.object);
  const property = value.computed === true ? literal(value.property) : nameOf(value.property);
  return object === undefined || property === undefined ? undefined : `${object}.${property}`;
}
