/** Selects the algorithm of an operation when the caller names none.
 *
 *      user's rules ─▶ measurements of `shoal tune` ─▶ table of rules ─▶ another, where the cost model finds it clearly faster
 *                                                └▶ all-reduce of more than 64 ranks: the cheapest by formula
 *
 *  First match wins. A pure function of facts that all ranks share, so that all choose alike; it must not use anything that one
 *  rank alone knows, such as the place of its buffer. */
import { ShoalError } from '../base/errors.ts';
import { defaultCostModel, type CostModel } from '../plan/cost.ts';
import { collectives, mailboxBytes, type Collective, type PlanRequest } from '../plan/ir.ts';
import { rankCount, type Topology } from '../plan/topology.ts';

import {
  canServe,
  estimateFastest,
  evenRequest,
  networkLimits,
  predictedRanksMax,
  predictFastest,
  representativeBytes,
  type PredictionInput,
  type TransferLimits,
} from './predict.ts';
import { algorithms } from './registry.ts';

/** `one-host`: all ranks on one host, and they can load from and store to each other's memory. `two-level`: several hosts, some
 *  with several ranks. `rails`: two-level, and every host has equally many. `flat`: every rank reaches every other one alike,
 *  by sending. */
export type TopologyClass = 'one-host' | 'two-level' | 'rails' | 'flat';

/** One row of the table. */
export interface SelectionRule {
  readonly collective: Collective;
  /** Class of topologies that the rule is for; undefined: any. `two-level` includes `rails`. */
  readonly topologyClass?: TopologyClass;
  /** Sizes of the whole operation, count × element size: `bytesFrom` inclusive, `bytesTo` exclusive and possibly infinite. */
  readonly bytesFrom: number;
  readonly bytesTo: number;
  /** Most ranks that the rule is for; infinite for any number. */
  readonly ranksMax: number;
  /** Fewest hosts that the rule is for. */
  readonly hostsMin?: number;
  /** Set if the rule is only for sums in any order. */
  readonly relaxed?: true;
  /** Set if the rule is only for calls in which some rank has announced buffers that its peers cannot reach. */
  readonly buffers?: 'private';
  readonly algorithm: string;
}

export interface SelectionInput extends Omit<PredictionInput, 'model' | 'limits'> {
  /** The call itself, which the chosen algorithm must be able to serve. Default: any call of that size in even parts. */
  readonly request?: PlanRequest;
  /** True if ranks of one host can load from and store to each other's memory. The same on all ranks. */
  readonly loadStore: boolean;
  /** `private`: some rank has announced buffers that its peers cannot reach. Default: `shared`. */
  readonly buffers?: 'shared' | 'private';
  /** The user's rules, from `parseSelection`. */
  readonly overrides?: readonly SelectionRule[];
  /** Measured choices of a world of this shape, from `tunedRules`. Left aside where the algorithm cannot serve the call. */
  readonly tuned?: readonly SelectionRule[];
  /** Rates of this world, equal on all ranks. Default: none, the table decides. */
  readonly model?: CostModel;
  /** Limits of transfers. Default: `networkLimits`. */
  readonly limits?: TransferLimits;
  /** Earlier predictions for this world; filled here. A few entries per collective and power of two. */
  readonly predictions?: Map<string, string>;
}

const KiB = 1024;
const MiB = 1024 * KiB;
const any = Number.POSITIVE_INFINITY;
const moving = collectives.filter((collective) => collective !== 'barrier');

/** The table follows the cost model, with which the tests compare it. Where hosts have several ranks, algorithms that reduce
 *  inside the host first send a fraction of the bytes between hosts. Else n−1 messages at once beat log₂ n hops up to some 16 to
 *  24 ranks, and sending everything to all ranks pays only while (n−1)·S is small against a hop. */
const defaults: readonly SelectionRule[] = [
  // The announcement of a call is a barrier already, over any network.
  row('barrier', { algorithm: 'mailbox' }),
  // Two ranks enter or stage half of the data sooner than each enters all of it. More ranks wait for each other more than that saves.
  row('all-reduce', { topologyClass: 'one-host', buffers: 'private', bytesFrom: 4 * KiB, ranksMax: 2, algorithm: 'host-staged' }),
  row('all-reduce', { topologyClass: 'one-host', bytesFrom: 4 * KiB, ranksMax: 2, algorithm: 'host-direct' }),
  ...moving.map((collective) => row(collective, { topologyClass: 'one-host', bytesTo: mailboxBytes + 1, algorithm: 'mailbox' })),
  row('all-reduce', { topologyClass: 'one-host', buffers: 'private', algorithm: 'host-staged' }),
  ...moving.map((collective) => row(collective, { topologyClass: 'one-host', algorithm: 'host-direct' })),
  // Between hosts, every rank sends its announcement to all already: data that fits in it costs no more than its bytes.
  ...moving.map((collective) => row(collective, { bytesTo: mailboxBytes + 1, ranksMax: 8, algorithm: 'mailbox' })),
  ...moving.map((collective) => row(collective, { bytesTo: 4 * KiB + 1, ranksMax: 32, algorithm: 'mailbox' })),
  row('all-reduce', { topologyClass: 'flat', bytesFrom: 4 * MiB, relaxed: true, algorithm: 'ring' }),
  row('all-reduce', { topologyClass: 'two-level', bytesTo: 16 * KiB, ranksMax: 6, algorithm: 'one-shot' }),
  row('all-reduce', { topologyClass: 'two-level', bytesTo: 4 * KiB, ranksMax: 8, algorithm: 'one-shot' }),
  row('all-reduce', { topologyClass: 'rails', ranksMax: 64, algorithm: 'fairring' }),
  row('all-reduce', { topologyClass: 'rails', bytesFrom: 256 * KiB, algorithm: 'fairring' }),
  row('all-reduce', { topologyClass: 'two-level', algorithm: 'halving-doubling' }),
  row('all-reduce', { bytesTo: 256 * KiB, ranksMax: 2, algorithm: 'one-shot' }),
  row('all-reduce', { bytesTo: 64 * KiB, ranksMax: 4, algorithm: 'one-shot' }),
  row('all-reduce', { bytesTo: 32 * KiB, ranksMax: 16, algorithm: 'one-shot' }),
  row('all-reduce', { bytesTo: 16 * KiB, ranksMax: 24, algorithm: 'one-shot' }),
  row('all-reduce', { ranksMax: 16, algorithm: 'direct' }),
  // Two levels of about √n messages each, until shares are large.
  row('all-reduce', { topologyClass: 'flat', hostsMin: 17, bytesTo: 2 * MiB, algorithm: 'fairring' }),
  row('all-reduce', { bytesTo: 256 * KiB, algorithm: 'halving-doubling' }),
  row('all-reduce', { algorithm: 'direct' }),
  row('broadcast', { topologyClass: 'two-level', algorithm: 'tree' }),
  row('broadcast', { bytesTo: 32 * KiB, ranksMax: 8, algorithm: 'one-shot' }),
  row('broadcast', { bytesTo: 128 * KiB, algorithm: 'tree' }),
  row('broadcast', { algorithm: 'direct' }),
  row('reduce', { topologyClass: 'two-level', algorithm: 'tree' }),
  row('reduce', { bytesTo: 64 * KiB, algorithm: 'tree' }),
  row('reduce', { ranksMax: 16, algorithm: 'direct' }),
  row('reduce', { bytesTo: 128 * KiB, algorithm: 'tree' }),
  row('reduce', { algorithm: 'direct' }),
  row('reduce-scatter', { bytesFrom: 4 * MiB, relaxed: true, algorithm: 'ring' }),
  ...(['all-gather', 'reduce-scatter'] as const).flatMap((collective) => [
    row(collective, { topologyClass: 'two-level', bytesTo: 64 * KiB, ranksMax: 6, algorithm: 'direct' }),
    row(collective, { topologyClass: 'two-level', algorithm: 'halving-doubling' }),
    row(collective, { ranksMax: 24, algorithm: 'direct' }),
    row(collective, { bytesTo: 128 * KiB, algorithm: 'halving-doubling' }),
    row(collective, { algorithm: 'direct' }),
  ]),
  ...(['gather', 'scatter'] as const).flatMap((collective) => [
    row(collective, { topologyClass: 'two-level', bytesTo: 128 * KiB, algorithm: 'tree' }),
    row(collective, { ranksMax: 8, algorithm: 'direct' }),
    row(collective, { bytesTo: 128 * KiB, algorithm: 'tree' }),
    row(collective, { algorithm: 'direct' }),
  ]),
  row('all-to-all', { algorithm: 'direct' }),
];

/** All rules in the order in which they are tried. */
export function selectionTable(overrides: readonly SelectionRule[] = []): SelectionRule[] {
  return [...overrides, ...defaults];
}

/** The algorithm's name, for `buildPlan`. Only the user's own rules may choose one that cannot serve the call. */
export function selectAlgorithm(input: SelectionInput): string {
  const { collective, topology, overrides = [], tuned = [], model, request = evenRequest(input) } = input;
  const ranks = rankCount(topology);
  const topologyClass = topologyClassOf(topology, input.loadStore);
  const applies = (rule: SelectionRule): boolean =>
    rule.collective === collective &&
    isIn(topologyClass, rule.topologyClass) &&
    rule.bytesFrom <= input.bytes &&
    input.bytes < rule.bytesTo &&
    ranks <= rule.ranksMax &&
    topology.hosts.length >= (rule.hostsMin ?? 1) &&
    (rule.relaxed !== true || input.order === 'relaxed') &&
    (rule.buffers === undefined || rule.buffers === input.buffers);
  // Tuning measures with shared buffers, so its choices are not for private ones.
  const measured = input.buffers === 'private' ? [] : tuned;
  const serves = (name: string): boolean => canServe(name, request, input.order);
  const asked = overrides.find(applies) ?? measured.find((rule) => applies(rule) && serves(rule.algorithm));
  if (asked) return asked.algorithm;
  const usual = defaults.find((rule) => applies(rule) && serves(rule.algorithm))?.algorithm;
  if (usual === undefined) throw new ShoalError('usage', `unknown collective '${collective}'; use one of ${collectives.join(', ')}`);
  const atScale = ranks > predictedRanksMax && topologyClass !== 'one-host' && collective === 'all-reduce';
  if (atScale && (input.networkPath === undefined || input.bytes > input.networkPath.bytesMax)) {
    const rates = model ?? defaultCostModel;
    return estimateFastest({ ...input, model: rates, limits: input.limits ?? networkLimits(topology, rates), networkPath: undefined });
  }
  // On one host everything is loads and stores, which the table knows better than rates do.
  if (model === undefined || topologyClass === 'one-host' || ranks > predictedRanksMax || ranks === 1) return usual;
  const networkPath = input.networkPath && input.bytes <= input.networkPath.bytesMax ? input.networkPath : undefined;
  const bytes = representativeBytes(input.bytes, networkPath);
  const able = candidatesFor(collective, ranks).filter(serves);
  // The key has everything that the prediction depends on: it must not depend on earlier calls, which ranks and their threads
  // remember differently.
  const key = `${collective} ${bytes} ${usual} of ${able.join()}${networkPath ? ' network path' : ''}`;
  const known = input.predictions?.get(key);
  if (known !== undefined) return known;
  const limits = input.limits ?? networkLimits(topology, model);
  const predicted = predictFastest({ ...input, bytes, model, networkPath, limits }, able, usual);
  input.predictions?.set(key, predicted);
  return predicted;
}

/** Algorithms worth comparing: all in a small world, those of the table in a larger one. */
function candidatesFor(collective: Collective, ranks: number): string[] {
  if (ranks <= smallWorldMax) return algorithms.filter((each) => each.build[collective]).map(({ name }) => name);
  return [...new Set(defaults.filter((rule) => rule.collective === collective && ranks <= rule.ranksMax).map((rule) => rule.algorithm))];
}

/** Largest world in which the plans even of unlikely algorithms are built in a millisecond or so. */
const smallWorldMax = 16;

function topologyClassOf(topology: Topology, loadStore: boolean): TopologyClass {
  if (topology.hosts.length === 1) return loadStore ? 'one-host' : 'flat';
  if (topology.hosts.every((host) => host.length === 1)) return 'flat';
  return topology.hosts.every((host) => host.length === topology.hosts[0].length) ? 'rails' : 'two-level';
}

function isIn(topologyClass: TopologyClass, wanted: TopologyClass | undefined): boolean {
  return wanted === undefined || wanted === topologyClass || (wanted === 'two-level' && topologyClass === 'rails');
}

/** Rules from a setting: `all-reduce:0-4k=direct,4k-inf=ring;broadcast:tree`. Sizes in bytes with k, m, g for powers of 1024; `*`
 *  for every collective that the algorithm has. Sizes that no rule covers keep the default. Empty text: no rules.
 *  @throws ShoalError `config` naming the part that is wrong. */
export function parseSelection(text: string): SelectionRule[] {
  const parts = text.split(';').filter((part) => part.trim() !== '');
  return parts.flatMap((part) => {
    const [name, list, ...rest] = part.split(':').map((each) => each.trim());
    if (list === undefined || list === '' || rest.length > 0)
      fail(part, `expected 'collective:algorithm' or 'collective:from-to=algorithm,…'`);
    if (name !== '*' && !isCollective(name)) fail(part, `unknown collective '${name}'; use one of ${collectives.join(', ')} or *`);
    return list.split(',').flatMap((item) => parseItem(part, name, item.trim()));
  });
}

/** The table as text, one line per rule. */
export function formatTable(rules: readonly SelectionRule[]): string {
  const lines = [
    ['collective', 'topology', 'bytes', 'ranks', 'order', 'algorithm'],
    ...rules.map((each) => [
      each.collective,
      [each.topologyClass ?? 'any', ...(each.hostsMin === undefined ? [] : [`≥ ${each.hostsMin} hosts`]), each.buffers ?? []]
        .flat()
        .join(', '),
      `${formatSize(each.bytesFrom)}-${formatSize(each.bytesTo)}`,
      each.ranksMax === any ? 'any' : `≤ ${each.ranksMax}`,
      each.relaxed ? 'relaxed' : 'any',
      each.algorithm,
    ]),
  ];
  const widths = lines[0].map((_, column) => Math.max(...lines.map((line) => line[column].length)));
  return lines
    .map((line) =>
      line
        .map((cell, column) => cell.padEnd(widths[column]))
        .join('  ')
        .trimEnd(),
    )
    .join('\n');
}

function row(collective: Collective, rule: Partial<SelectionRule> & { readonly algorithm: string }): SelectionRule {
  return { collective, bytesFrom: 0, bytesTo: any, ranksMax: any, ...rule };
}

function parseItem(part: string, name: string, item: string): SelectionRule[] {
  const match = /^(?:([^-=]+)-([^-=]+)=\s*)?([a-z][a-z-]*)$/.exec(item);
  if (!match) fail(part, `'${item}' is not 'algorithm' or 'from-to=algorithm'`);
  const [, from, to, algorithm] = match;
  const known = algorithms.find((each) => each.name === algorithm);
  if (!known) fail(part, `unknown algorithm '${algorithm}'; use one of ${algorithms.map((each) => each.name).join(', ')}`);
  const bytesFrom = from === undefined ? 0 : parseSize(part, from);
  const bytesTo = to === undefined ? any : parseSize(part, to);
  if (bytesFrom >= bytesTo) fail(part, `'${item}' covers no size: from must be below to`);
  const wanted = name === '*' ? collectives.filter((each) => known.build[each]) : collectives.filter((each) => each === name);
  const missing = wanted.find((each) => known.build[each] === undefined);
  if (missing !== undefined) {
    const others = algorithms.filter((each) => each.build[missing]).map((each) => each.name);
    fail(part, `${algorithm} has no ${missing}; use one of ${others.join(', ')}`);
  }
  return wanted.map((collective) => row(collective, { bytesFrom, bytesTo, algorithm }));
}

const units: Readonly<Record<string, number>> = { '': 1, k: KiB, m: MiB, g: 1024 * MiB };

function parseSize(part: string, text: string): number {
  if (text.trim() === 'inf') return any;
  const match = /^(\d{1,15})([kmg]?)$/i.exec(text.trim());
  if (!match) fail(part, `'${text}' is not a size; write bytes such as 0, 4096, 4k, 25m, 1g or inf`);
  return Number(match[1]) * units[match[2].toLowerCase()];
}

function formatSize(bytes: number): string {
  if (bytes === any) return 'inf';
  const unit = ['g', 'm', 'k'].find((each) => bytes >= units[each] && bytes % units[each] === 0) ?? '';
  return `${bytes / units[unit]}${unit}`;
}

function isCollective(name: string): name is Collective {
  return collectives.some((each) => each === name);
}

function fail(part: string, message: string): never {
  throw new ShoalError('config', `selection rule '${part.trim()}': ${message}`);
}
