/** The verifier: proves that a plan keeps its collective's promise, for every order in which its channels may run and its
 *  transfers may land. The properties and their proofs are in docs/plans.md. It must not know algorithms.
 *
 *      structure ──▶ symbolic execution ──▶ deadlock, signals ──▶ races, begin and end ──▶ post-condition */
import { canonicalTree, type AssociationTree } from './association.ts';
import { Expressions, type Value } from './expression.ts';
import type { Plan } from './ir.ts';
import { expectations, reduces, type Expectation } from './postcondition.ts';
import { raceProblems } from './races.ts';
import { structureProblems } from './structure.ts';
import { executeSymbolically, type Execution } from './symbolic.ts';
import { rankCount } from './topology.ts';

export interface VerifyResult {
  readonly ok: boolean;
  /** Problems as text, each naming rank, channel and step or element; at most `problemsMax`, then the number of further ones. */
  readonly problems: readonly string[];
}

/** @param options.problemsMax default 20. */
export function verify(plan: Plan, options: { readonly problemsMax?: number } = {}): VerifyResult {
  const problems = findProblems(plan);
  const most = options.problemsMax ?? 20;
  const shown = problems.length <= most ? problems : [...problems.slice(0, most), `… and ${problems.length - most} more`];
  return { ok: problems.length === 0, problems: shown };
}

function findProblems(plan: Plan): string[] {
  const structural = structureProblems(plan);
  if (structural.length > 0) return structural;
  const expressions = new Expressions();
  const execution = executeSymbolically(plan, expressions);
  // After a deadlock nothing else can be said.
  if (!execution.completed) return [...execution.problems];
  return [...execution.problems, ...raceProblems(execution), ...resultProblems(plan, execution, expressions)];
}

function resultProblems(plan: Plan, execution: Execution, expressions: Expressions): string[] {
  const { request } = plan;
  const problems: string[] = [];
  if (reduces(request) && plan.association === 'none') problems.push(`a plan that reduces must say its association, not 'none'`);
  const check = new ResultCheck(plan, expressions);
  for (const { rank } of plan.programs) {
    for (const expectation of expectations(request, rank)) problems.push(...check.problems(rank, expectation, execution));
  }
  return problems;
}

class ResultCheck {
  readonly #plan: Plan;
  readonly #expressions: Expressions;
  readonly #n: number;
  readonly #tree: AssociationTree;
  /** Relaxed sums, by index in the whole: all replicas of an element must be the same expression (node). */
  readonly #replicas = new Map<number, { readonly count: number; readonly node: number; readonly rank: number }>();

  constructor(plan: Plan, expressions: Expressions) {
    this.#plan = plan;
    this.#expressions = expressions;
    this.#n = rankCount(plan.request.topology);
    this.#tree = canonicalTree(plan.request.topology);
  }

  problems(rank: number, expectation: Expectation, { memory }: Execution): string[] {
    const { buffer, range } = expectation;
    const problems: string[] = [];
    for (const { offset, count, value } of memory[rank][buffer].read(range.offset, range.count)) {
      const found = `rank ${rank} ${buffer}[${offset}, ${offset + count}): [${offset}] is ${this.#expressions.format(value, offset)}`;
      if (expectation.kind === 'reduction' && this.#plan.association === 'relaxed' && this.#n > 1) {
        const complaint = this.#relaxedComplaint(value, expectation, { rank, offset, count });
        if (complaint !== undefined) problems.push(`${found}; ${complaint}`);
        continue;
      }
      const wanted = this.#wanted(expectation);
      if (value.node !== wanted.node || value.delta !== wanted.delta) {
        problems.push(`${found}, not ${this.#expressions.format(wanted, offset)}`);
      }
    }
    return problems;
  }

  #wanted(expectation: Expectation): Value {
    const { delta } = expectation;
    if (expectation.kind === 'copy') return this.#expressions.leaf({ rank: expectation.rank, buffer: expectation.from, delta });
    const sum = this.#canonical(this.#tree, expectation);
    return this.#n === 1 ? sum : this.#expressions.final(sum);
  }

  #canonical(tree: AssociationTree, expectation: Expectation & { kind: 'reduction' }): Value {
    if (tree.kind === 'leaf') return this.#expressions.leaf({ rank: tree.rank, buffer: expectation.from, delta: expectation.delta });
    return this.#expressions.reduce(this.#canonical(tree.left, expectation), this.#canonical(tree.right, expectation));
  }

  #relaxedComplaint(
    value: Value,
    expectation: Expectation & { kind: 'reduction' },
    where: { readonly rank: number; readonly offset: number; readonly count: number },
  ): string | undefined {
    const sum = this.#expressions.underFinal(value);
    if (sum === undefined) return 'its last reduction is not marked final';
    const leaves = this.#expressions.leavesOf(sum);
    if (leaves === undefined) return 'it holds garbage or a result that is marked final before the end';
    const ranks = new Set(leaves.map((leaf) => leaf.rank));
    const aligned = leaves.every((leaf) => leaf.delta === expectation.delta && leaf.buffer === expectation.from);
    if (!aligned || leaves.length !== this.#n || ranks.size !== this.#n) return `every rank's contribution must be in it once`;
    return this.#replicaComplaint(value, where);
  }

  /** Complaint about a replica that differs. Replicas (all-reduce) are compared element range by element range with the first
   *  rank that has them. */
  #replicaComplaint(
    value: Value,
    { rank, offset, count }: { readonly rank: number; readonly offset: number; readonly count: number },
  ): string | undefined {
    if (this.#plan.request.collective !== 'all-reduce') return undefined;
    for (const [start, known] of this.#replicas) {
      if (start < offset + count && offset < start + known.count && known.node !== value.node) {
        return `rank ${known.rank} has a sum of another order there`;
      }
    }
    if (rank === 0) this.#replicas.set(offset, { count, node: value.node, rank });
    return undefined;
  }
}
