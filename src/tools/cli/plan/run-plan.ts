/** The command `shoal plan`: its output and its files. */
import { ShoalError } from '../../../base/errors.ts';
import { formatBytes } from '../../../base/settings/quantity.ts';
import type { Settings } from '../../../base/settings/settings.ts';
import { assumedRates, type NetworkPathSpec } from '../../../collectives/network-path.ts';
import { inColumns } from '../../draw/columns.ts';
import { formatPredictions } from '../../draw/prediction-table.ts';
import { formatTable, parseSelection, selectionTable, type SelectionRule } from '../../../collectives/select.ts';
import { tunedRules, tunedWorldOf } from '../../../collectives/tuning.ts';
import { networkPathSpec, networkPathRanksMax } from '../../../call/network-path.ts';
import { loadTuning } from '../../../call/tuning-file.ts';
import { dtypeInfo } from '../../../memory/dtype.ts';
import { costOf, defaultCostModel, type CostModel, type PlanCost } from '../../../plan/cost.ts';
import { picturesPage } from '../../chart/document.ts';
import { drawPlan, formatSeconds } from '../../draw/draw-plan.ts';
import { collectives, type Plan } from '../../../plan/ir.ts';
import { printPlan } from '../../../plan/print.ts';
import { rankCount, type Topology } from '../../../plan/topology.ts';
import { verify } from '../../../plan/verify.ts';
import { writeFileAt } from '../../../base/files/write-file.ts';
import type { RequestFlags } from './request-options.ts';
import { buildPlan } from '../../../collectives/build.ts';
import { checkProvable, collectiveOf, planOf, planRequest, worldOf, worldText } from './plan-request.ts';

/** Flags as commander gives them. */
export interface PlanFlags extends RequestFlags {
  readonly algorithm: string;
  readonly layout?: readonly number[];
  readonly print?: true;
  readonly rank?: number;
  readonly verify?: true;
  readonly cost?: true;
  readonly draw?: string;
  readonly table?: true;
  readonly algorithms?: string;
  readonly json?: true;
}

/** Rows of the cost table before ranks that cost the same as the one before are left out. */
const rowsMax = 64;

/** @returns `ok` is false when the plan was to be proved and is wrong.
 *  @throws ShoalError `usage`, `config` or `unsupported`; `system` when the drawing cannot be written. */
export async function runPlan(
  collective: string | undefined,
  flags: PlanFlags,
  settings: Settings,
): Promise<{ readonly text: string; readonly ok: boolean }> {
  const overrides = parseSelection(flags.algorithms ?? settings.algorithms);
  if (flags.table === true) {
    if (flags.json === true) return { text: jsonText({ rules: shownRules(collective, overrides) }), ok: true };
    return { text: `${tables(collective, flags, settings, overrides)}\n`, ok: true };
  }
  const { request, dtype } = planRequest(collective, flags);
  const plan = planOf(flags.algorithm, request, { overrides });
  const ranks = rankCount(plan.request.topology);
  if (flags.verify === true) checkProvable(plan);
  if (flags.draw !== undefined && plan.tile !== undefined) {
    const message = `--draw needs the programs of all ${ranks} ranks, of which only ${plan.tile} were built; ask for fewer ranks`;
    throw new ShoalError('unsupported', message);
  }
  if (flags.rank !== undefined && flags.rank >= ranks)
    throw new ShoalError('usage', `--rank ${flags.rank} is not one of the ranks 0…${ranks - 1}`);
  const elementBytes = dtypeInfo(dtype).bytes;
  const cost = costOf(plan, elementBytes);
  if (flags.json === true) {
    const proof = flags.verify === true ? verify(plan) : null;
    const drawn = flags.draw === undefined ? null : writePicture(plan, elementBytes, flags.draw);
    const programs = flags.print === true ? printed(plan, flags.rank).programs : null;
    const { algorithm, association } = plan;
    return { text: jsonText({ algorithm, request, dtype, ranks, association, cost, proof, programs, drawn }), ok: proof?.ok ?? true };
  }
  const parts = [facts(plan, cost, { dtype, elementBytes })];
  if (flags.print === true) parts.push(printPlan(printed(plan, flags.rank)));
  if (flags.cost === true) parts.push(costTable(cost));
  const verdict = flags.verify === true ? verify(plan) : undefined;
  if (verdict !== undefined)
    parts.push(verdict.ok ? 'proved: every schedule gives the promised result' : `WRONG\n${verdict.problems.join('\n')}`);
  if (flags.draw !== undefined) parts.push(draw(plan, elementBytes, flags.draw));
  return { text: `${parts.join('\n\n')}\n`, ok: verdict?.ok ?? true };
}

/** The plan with the program of this rank only, or with all that were built. */
function printed(plan: Plan, rank: number | undefined): Plan {
  if (rank === undefined) return plan;
  const { programs } = plan.tile === undefined ? plan : buildPlan(plan.algorithm, plan.request, { onlyRank: rank });
  return { ...plan, programs: [programs[rank]] };
}

/** The rules, of one collective if it is named, and what they and the rates come to on the world that is asked for. */
function tables(name: string | undefined, flags: PlanFlags, settings: Settings, overrides: readonly SelectionRule[]): string {
  const shown = name === undefined ? collectives : [collectiveOf(name)];
  const rules = shownRules(name, overrides);
  const topology = worldOf(flags);
  const shape = { topology, loadStore: topology.hosts.length === 1, order: settings.order };
  const tuning = settings.tuningFile === '' ? undefined : loadTuning(settings.tuningFile).tuning;
  const rates = tunedWorldOf(tuning, shape)?.rates;
  const model = rates ?? defaultCostModel;
  const networkPath = networkPathOf(topology, model, settings);
  const predictions = formatPredictions({ ...shape, overrides, tuned: tunedRules(tuning, shape), model, networkPath }, shown);
  const source = rates === undefined ? 'the rates of a 10 Gbit/s network' : `the rates in ${settings.tuningFile}`;
  return `${formatTable(rules)}\n\n${worldText(topology)} ranks, with ${source}:\n\n${predictions}`;
}

/** The rules, of one collective if it is named. */
function shownRules(name: string | undefined, overrides: readonly SelectionRule[]): readonly SelectionRule[] {
  const shown = name === undefined ? collectives : [collectiveOf(name)];
  return selectionTable(overrides).filter(({ collective }) => shown.includes(collective));
}

/** Sizes without an end are null. */
function jsonText(result: object): string {
  return `${JSON.stringify({ version: 1, ...result }, undefined, 2)}\n`;
}

/** The network path that groups of this topology take for small operations, by the rates of a network of the model's latency. */
function networkPathOf(topology: Topology, { networkLatency }: CostModel, { syncBytesMax }: Settings): NetworkPathSpec | undefined {
  const ranks = rankCount(topology);
  if (topology.hosts.length === 1 || ranks > networkPathRanksMax || syncBytesMax === 0) return undefined;
  return networkPathSpec(ranks, syncBytesMax, assumedRates(ranks, networkLatency));
}

function facts(plan: Plan, cost: PlanCost, { dtype, elementBytes }: { readonly dtype: string; readonly elementBytes: number }): string {
  const { algorithm, request, association, partials, programs } = plan;
  const most = (pick: (rank: PlanCost['ranks'][number]) => number): number =>
    cost.ranks.reduce((value, rank) => Math.max(value, pick(rank)), 0);
  const mailboxCount = Math.max(...programs.map(({ entry }) => entry.reduce((sum, { source }) => sum + source.count, 0)));
  const rows = [
    ['plan', `${algorithm} ${request.collective}`],
    ['of', `${request.count} × ${dtype}, ${size(request.count * elementBytes)}`],
    ['on', `${rankCount(request.topology)} ranks, ${worldText(request.topology)}`],
    ...(plan.tile === undefined
      ? []
      : [
          [
            'alike',
            `the programs of ${plan.tile === 1 ? 'one rank' : `the ${plan.tile} ranks of a host`} stand for all; equal shares, of whole lines`,
          ],
        ]),
    ['order', association === 'none' ? 'nothing is reduced' : `${association}${partials ? ', partial sums travel' : ''}`],
    [
      'network',
      `${size(cost.networkBytes)}, ${size(most((rank) => rank.networkBytesOut))} from the busiest rank in ${most((rank) => rank.networkMessages)} messages, ${cost.networkHops} hops`,
    ],
    ...(mailboxCount > 0 ? [['mailbox', `${size(mailboxCount * elementBytes)} per rank, at most, with its announcement`]] : []),
    ['scratch', `${size(most((rank) => rank.scratchBytes))} per rank, at most`],
    [
      'steps',
      `${most((rank) => rank.steps)} of the busiest rank, ${Math.max(...programs.map(({ channels }) => channels.length))} channels`,
    ],
    ['time', `${formatSeconds(cost.seconds)} in the cost model, after the announcement of the call`],
  ];
  return rows.map(([name, value]) => `${name.padEnd(8)} ${value}`).join('\n');
}

/** `25MiB`, `100 bytes`. */
function size(bytes: number): string {
  const text = formatBytes(bytes);
  return /\d$/.test(text) ? `${text} bytes` : text;
}

function costTable({ ranks }: PlanCost): string {
  const lines = [
    ['rank', 'steps', 'messages', 'bytes out', 'bytes in', 'in host', 'reduced', 'scratch', 'seconds'],
    ...ranks
      .slice(0, rowsMax)
      .map((rank, index) => [
        index,
        rank.steps,
        rank.networkMessages,
        rank.networkBytesOut,
        rank.networkBytesIn,
        rank.hostBytes,
        rank.reduceBytes,
        rank.scratchBytes,
        rank.seconds.toExponential(2),
      ]),
  ].map((line) => line.map(String));
  const text = inColumns(lines).join('\n');
  return ranks.length > rowsMax ? `${text}\n… ${ranks.length - rowsMax} more ranks` : text;
}

function draw(plan: Plan, elementBytes: number, path: string): string {
  return `drawn    ${writePicture(plan, elementBytes, path)}`;
}

/** SVG by itself, or in a page that scrolls on narrow screens. */
function writePicture(plan: Plan, elementBytes: number, path: string): string {
  const svg = drawPlan(plan, elementBytes);
  return writeFileAt(path, path.endsWith('.html') ? picturesPage(`${plan.algorithm} ${plan.request.collective}`, [{ svg }]) : svg);
}
