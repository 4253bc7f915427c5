/** `Info` as text for a terminal: sections of aligned lines, the unusual marked. Pure. */
import { formatBytes } from '../../../base/settings/quantity.ts';
import type { Info } from './gather-info.ts';
import type { Links } from '../../timing/job.ts';
import type { WebGpuInfo } from './webgpu-adapter.ts';

/** `links`: null when none were measured. */
export function formatInfo(info: Info & { readonly links: Links | null; readonly webgpu: WebGpuInfo }): string {
  const sections = [
    section('host', hostRows(info)),
    section('native addon', [[info.native.loaded ? `loaded, ${info.native.instructions} kernels` : `not loaded: ${info.native.reason}`]]),
    section(
      'fabrics',
      info.fabrics.map(({ name, description, available, reason }) => [
        name,
        available ? 'available' : 'not available',
        available ? description : reason!,
      ]),
    ),
    section('libfabric', libfabricRows(info)),
    section('webgpu', [[info.webgpu.adapter ?? `not available: ${info.webgpu.reason}`]]),
    section(
      'interfaces',
      info.interfaces.map(({ name, address, offered }) => [name, address, offered ? 'offered to other hosts' : '']),
    ),
    section('links', info.links === null ? [] : linkRows(info.links)),
    section('world', [[worldText(info)]]),
    section('settings', settingRows(info)),
    section(
      'warnings',
      info.warnings.map((warning) => [warning]),
    ),
  ];
  return sections.join('');
}

function hostRows({ host, versions }: Info): string[][] {
  const { allowed } = host;
  const limits = [`${allowed.affinity} by affinity`, allowed.quota === undefined ? 'no quota' : `quota ${allowed.quota}`];
  return [
    ['name', host.name],
    ['identity', host.identity],
    ['system', `${host.system}, Node.js ${versions['node']}, Shoal ${versions['shoal']}`],
    ['processors', `${allowed.count} may be used (${limits.join(', ')}; the machine has ${host.processors} × ${host.processor})`],
    [
      'memory',
      `${gibibytes(host.memoryBytes)}${host.availableBytes === null ? '' : `, ${gibibytes(host.availableBytes)} available: limited by ${host.limitedBy}`}`,
    ],
  ];
}

/** The settings that somebody has changed. */
function settingRows({ settings }: Info): string[][] {
  const shown = (value: string): string => (value === '' ? '-' : value);
  const changed = settings.filter(({ source }) => source.from !== 'default');
  const rest = `${settings.length - changed.length} others have their defaults: --json shows all, docs/settings.md explains them`;
  return [
    ...changed.map(({ name, value, fallback, source }) => [
      name,
      shown(value),
      `default ${shown(fallback)}${source.variable === name ? '' : `, from ${source.variable}`}`,
    ]),
    [rest],
  ];
}

function libfabricRows({ libfabric }: Info): string[][] {
  const { version, reason, devices } = libfabric;
  const head = version === null ? `not found: ${reason}` : `version ${version}${reason === null ? '' : `; ${reason}`}`;
  return [
    [head],
    ...devices.map(({ provider, device, address, used }) => [provider, device, address, used ? 'used by the fabric libfabric' : '']),
  ];
}

/** A matrix: a row per rank, a column per rank it reaches. */
function linkRows({ fabrics, hosts }: Links): string[][] {
  const head = ['', ...fabrics.map((_, rank) => `rank ${rank}`), ''];
  const hostOf = (rank: number): string => `host ${hosts.findIndex((members) => members.includes(rank))}`;
  return [head, ...fabrics.map((row, rank) => [`rank ${rank}`, ...row.map((fabric) => (fabric === 'self' ? '·' : fabric)), hostOf(rank)])];
}

function worldText({ world }: Info): string {
  if (world.error !== null) return `the environment is not valid: ${world.error}`;
  return world.source === 'none' ? 'no launcher: a world of one' : `rank ${world.rank} of ${world.size}, from ${world.source}`;
}

function gibibytes(bytes: number): string {
  return bytes < 2 ** 30 ? formatBytes(bytes) : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

/** Empty when there are no rows. Columns but the last are as wide as their widest cell; a row of one cell is a line. */
function section(title: string, rows: readonly (readonly string[])[]): string {
  if (rows.length === 0) return '';
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => (row.length === 1 ? 0 : (row[column]?.length ?? 0)))));
  const lines = rows.map((row) =>
    `  ${row.map((cell, column) => (column === row.length - 1 ? cell : cell.padEnd(widths[column]))).join('  ')}`.trimEnd(),
  );
  return `${title}\n${lines.join('\n')}\n\n`;
}
