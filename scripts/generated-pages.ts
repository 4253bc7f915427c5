/** The pages, and parts of pages, that are written from the sources: settings, the table of layers, measurements. */
import { bytesSyntax, millisecondsSyntax } from '../src/base/settings/quantity.ts';
import { describeAccepted, formatSetting, type SettingDefinition } from '../src/base/settings/setting.ts';
import { settingDefinitions, settingKeys } from '../src/base/settings/settings.ts';
import type { LayerTable } from './house-rules.ts';
import { graphTable } from './graph-table.ts';
import { formatTable, selectionTable } from '../src/collectives/select.ts';
import { suitesTables } from './suites-tables.ts';
import { systemTables } from './system-tables.ts';
import { hostTable, kvstoreTable, networkTable, performanceTables, type ReadResult } from './performance-tables.ts';

export interface Page {
  /** Path relative to the repository. */
  readonly path: string;
  readonly text: string;
}

const sectionTitles: Readonly<Record<SettingDefinition['section'], string>> = {
  collectives: 'Collectives',
  network: 'Network',
  memory: 'Memory',
  training: 'Training',
  scheduling: 'Scheduling',
  'parameter server': 'Parameter server',
  execution: 'Execution',
  diagnostics: 'Diagnostics',
};

export interface PageSources {
  readonly layers: LayerTable;
  readonly result: ReadResult;
  /** The version that scripts/native-interface.mjs prints. */
  readonly nativeInterface: string;
  /** Reads a page as it is now, for those that are generated in part. */
  read(path: string): string;
}

/** Every generated page as it should be. */
export function generatedPages({ layers, result, nativeInterface, read }: PageSources): Page[] {
  const withParts = (path: string, parts: Readonly<Record<string, string>>): Page => ({
    path,
    text: Object.entries(parts).reduce((text, [name, part]) => replacePart(text, name, part), read(path)),
  });
  const [graphs, kvstore] = [graphTable(result), kvstoreTable(result)];
  const selection = `\`\`\`\n${formatTable(selectionTable()).trimEnd()}\n\`\`\``;
  return [
    { path: 'docs/settings.md', text: settingsPage() },
    { path: 'src/memory/native-interface.ts', text: nativeInterfaceFile(nativeInterface) },
    withParts('ARCHITECTURE.md', { layers: layersTable(layers) }),
    withParts('README.md', { 'one-host': hostTable(result), 'between-hosts': networkTable(result) }),
    withParts('docs/performance.md', { results: performanceTables(result), graphs, kvstore, systems: systemTables(result) }),
    withParts('docs/algorithms.md', { selection }),
    withParts('docs/suites.md', { suites: suitesTables() }),
  ];
}

/** `text` with everything between `<!-- name:begin … -->` and `<!-- name:end -->` replaced.
 *  @throws Error when the marks are missing: the part would silently go stale. */
export function replacePart(text: string, name: string, part: string): string {
  const pattern = new RegExp(`(<!-- ${name}:begin[^>]*-->\\n)[\\s\\S]*?(<!-- ${name}:end -->)`);
  if (!pattern.test(text)) throw new Error(`the marks <!-- ${name}:begin --> and <!-- ${name}:end --> are missing`);
  return text.replace(pattern, (_, begin: string, end: string) => `${begin}${part}\n${end}`);
}

function nativeInterfaceFile(version: string): string {
  return `/** Generated from native/ by \`npm run docs\`: the interface of the addon that this code was written against. */
export const nativeInterface = '${version}';
`;
}

function settingsPage(): string {
  const sections = Object.entries(sectionTitles).map(([section, title]) => {
    const definitions = settingKeys.map((key): SettingDefinition => settingDefinitions[key]).filter((one) => one.section === section);
    return `## ${title}\n\n${definitions.map(settingEntry).join('\n\n')}\n`;
  });
  return `# Settings

<!-- Generated from src/base/settings/settings.ts by \`npm run docs\`; do not edit. -->

Settings are environment variables. An empty variable counts as unset. An invalid value stops the program with
a \`config\` error that names the variable, the value and the accepted values; a warning names each unknown \`SHOAL_*\`
variable, and the nearest known name. \`shoal info\` prints the settings that are changed, and with \`--json\` all in force, each with its source.

Sizes are in bytes or with a unit (\`64KiB\`, \`25MiB\`, \`1.5GiB\`; \`K\`, \`M\`, \`G\` mean the same, \`KB\`, \`MB\`, \`GB\` are
decimal), times in milliseconds or with a unit (\`500ms\`, \`30s\`, \`5min\`, \`1h\`).

${sections.join('\n')}`;
}

function settingEntry(definition: SettingDefinition): string {
  const fallback = formatSetting(definition, definition.fallback);
  // The head of the page says how sizes and times are written.
  const accepted = describeAccepted(definition).replace(bytesSyntax, 'bytes').replace(millisecondsSyntax, 'a time in ms');
  const facts = [
    `Default: ${fallback === '' ? 'empty' : `\`${fallback}\``}.`,
    ...(definition.kind === 'text' ? [] : [`Accepts: ${accepted}.`]),
    ...(definition.aliases.length === 0 ? [] : [`Also read from: ${definition.aliases.map(({ name }) => `\`${name}\``).join(', ')}.`]),
    ...(definition.sensitive ? ['Never printed.'] : []),
  ];
  return `### \`${definition.name}\`\n\n${definition.description}\n\n${facts.join(' ')}`;
}

/** The thread of a room, as the table of layers says it. */
const threads = { caller: ' (calling thread)', comm: ' (comm thread)', both: '' } as const;

/** The table of layers, the highest rank first, as one draws a building; the rooms of a layer, too. */
function layersTable({ layers }: LayerTable): string {
  const rows = layers
    .toSorted((a, b) => b.rank - a.rank)
    .flatMap(({ folder, rank, purpose, rooms = [] }) => [
      `| ${rank} | \`src/${folder}\` | ${purpose} |`,
      ...rooms.map((room) => `| | \`src/${folder}/${room.folder}\` | ${room.purpose}${threads[room.thread ?? 'both']} |`),
    ]);
  return ['| rank | folder | what it is |', '|---|---|---|', ...rows].join('\n');
}
