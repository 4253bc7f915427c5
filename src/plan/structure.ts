/** The verifier's first look, at each step by itself: spans inside their buffers, ranks that exist, remote locations on the
 *  own host only (mailboxes come to every host), well-formed trees, operands that overlap only as the kernels allow. */
import { isCount } from '../base/bytes.ts';
import { mailboxCount, type BufferName, type Location, type Plan, type Program, type Step } from './ir.ts';
import { bufferCounts } from './postcondition.ts';
import { hostOfRanks, rankCount } from './topology.ts';

/** Everything wrong with the plan's form, readable; only a plan without such problems is checked further. */
export function structureProblems(plan: Plan): string[] {
  const { request, programs } = plan;
  const n = rankCount(request.topology);
  if (plan.tile !== undefined) return [`only the first ${plan.tile} programs were built; a proof needs those of all ranks`];
  if (plan.onlyRank !== undefined) return [`only rank ${plan.onlyRank}'s program was built; build the plan without onlyRank`];
  if (programs.length !== n) return [`there are ${programs.length} programs for ${n} ranks`];
  const problems: string[] = [];
  const hostOf = hostOfRanks(request.topology);
  programs.forEach((program, rank) => {
    if (program.rank !== rank) problems.push(`program ${rank} says it is rank ${program.rank}'s`);
    if (!isCount(program.scratchCount)) problems.push(`rank ${rank}: scratchCount is ${program.scratchCount}`);
    if (!isCount(program.signalCount)) problems.push(`rank ${rank}: signalCount is ${program.signalCount}`);
  });
  if (problems.length > 0) return problems;
  const mailbox = mailboxCount(request);
  const sizes = programs.map((program) => ({ ...bufferCounts(request, program.rank), scratch: program.scratchCount, mailbox }));
  for (const program of programs) {
    const check = (): StepCheck => new StepCheck(program, { programs, sizes, hostOf });
    const note = (where: string, found: readonly string[]): void =>
      void problems.push(...found.map((problem) => `rank ${program.rank} ${where}: ${problem}`));
    program.entry.forEach((step, index) => note(`entry step ${index}`, check().entryProblems(step)));
    program.channels.forEach((steps, channel) =>
      steps.forEach((step, index) => note(`channel ${channel} step ${index}`, check().problems(step))),
    );
  }
  return problems;
}

interface Surroundings {
  readonly programs: readonly Program[];
  readonly sizes: readonly Readonly<Record<BufferName, number>>[];
  readonly hostOf: readonly number[];
}

class StepCheck {
  readonly #rank: number;
  readonly #around: Surroundings;
  readonly #problems: string[] = [];

  constructor(program: Program, around: Surroundings) {
    this.#rank = program.rank;
    this.#around = around;
  }

  /** Problems of an entry step. Before the announcement there are no peers: a rank copies from its caller's buffers into its own
   *  mailbox. */
  entryProblems(step: Step): readonly string[] {
    if (step.kind !== 'copy') {
      this.#problems.push(`is a ${step.kind}; entry steps copy`);
      return this.#problems;
    }
    const { source, target } = step;
    if ((source.buffer !== 'data' && source.buffer !== 'input') || !this.#isOwn(source)) {
      this.#problems.push(`reads ${spanText(source)}; entry steps read the rank's own data or input`);
    }
    if (target.buffer !== 'mailbox' || !this.#isOwn(target)) {
      this.#problems.push(`writes ${spanText(target)}; entry steps write the rank's own mailbox`);
    }
    return this.problems({ kind: 'copy', source, target }, 'entry');
  }

  problems(step: Step, when: 'entry' | 'channel' = 'channel'): readonly string[] {
    if (when === 'channel') this.#checkMailbox(step);
    switch (step.kind) {
      case 'put':
        if (step.peer === this.#rank) this.#problems.push('puts to itself; use copy');
        if (!this.#signal(step.peer, step.signal)) break;
        this.#location(step.source);
        this.#location({ ...step.target, rank: step.peer }, 'put');
        this.#sameCounts([step.source, step.target]);
        break;
      case 'signal':
        this.#signal(step.peer, step.signal);
        break;
      case 'wait':
        this.#signal(this.#rank, step.signal);
        if (!isCount(step.value) || step.value < 1) this.#problems.push(`waits for the value ${step.value}`);
        break;
      case 'copy':
        this.#location(step.source);
        this.#location(step.target);
        this.#sameCounts([step.source, step.target]);
        if (this.#overlap(step.source, step.target))
          this.#problems.push(`source ${spanText(step.source)} and target ${spanText(step.target)} overlap`);
        break;
      case 'reduce':
        this.#reduce(step);
        break;
      case 'flush':
        break;
    }
    return this.#problems;
  }

  #reduce({ targets, sources, tree }: Extract<Step, { kind: 'reduce' }>): void {
    if (targets.length === 0 || sources.length === 0) this.#problems.push('reduces nothing');
    for (const location of [...targets, ...sources]) this.#location(location);
    this.#sameCounts([...targets, ...sources]);
    let depth = 0;
    for (const entry of tree) {
      if (entry === -1) depth -= 1;
      else if (isCount(entry) && entry < sources.length) depth += 1;
      else this.#problems.push(`its tree names source ${entry} of ${sources.length}`);
      if (depth < 1) break;
    }
    if (depth !== 1) this.#problems.push(`its tree [${tree.join(' ')}] is not one expression in postfix`);
    targets.forEach((target, index) => {
      for (const other of targets.slice(index + 1)) {
        if (this.#overlap(target, other)) this.#problems.push(`targets ${spanText(target)} and ${spanText(other)} overlap`);
      }
      for (const source of sources) {
        const exact = target.offset === source.offset && target.count === source.count;
        if (!exact && this.#overlap(target, source)) {
          this.#problems.push(`target ${spanText(target)} and source ${spanText(source)} overlap without being equal`);
        }
      }
    });
  }

  /** Refuses writes to a mailbox: peers read it without signals, and its bytes have travelled to other hosts already. */
  #checkMailbox(step: Step): void {
    const targets = step.kind === 'put' || step.kind === 'copy' ? [step.target] : step.kind === 'reduce' ? step.targets : [];
    for (const target of targets) {
      if (target.buffer === 'mailbox') this.#problems.push(`writes ${spanText(target)}, which only entry steps may`);
    }
    if (step.kind === 'put' && step.source.buffer === 'mailbox') this.#problems.push('puts from a mailbox; put from where it was filled');
  }

  #isOwn({ rank }: Location): boolean {
    return rank === undefined || rank === this.#rank;
  }

  #signal(rank: number, signal: number): boolean {
    const program = this.#around.programs.at(rank);
    if (!isCount(rank) || program === undefined) {
      this.#problems.push(`names rank ${rank}, which does not exist`);
      return false;
    }
    if (!isCount(signal) || signal >= program.signalCount) {
      this.#problems.push(`names signal ${signal} of rank ${rank}, which has ${program.signalCount}`);
      return false;
    }
    return true;
  }

  #location(location: Location, access: 'own' | 'put' = 'own'): void {
    const rank = location.rank ?? this.#rank;
    const sizes = this.#around.sizes.at(rank);
    if (!isCount(rank) || sizes === undefined) {
      this.#problems.push(`names rank ${rank}, which does not exist`);
      return;
    }
    if (access === 'own' && location.buffer !== 'mailbox' && this.#around.hostOf[rank] !== this.#around.hostOf[this.#rank]) {
      this.#problems.push(`touches ${spanText(location)} directly, which is on another host`);
    }
    const { buffer, offset, count } = location;
    const inside = isCount(offset) && isCount(count) && count > 0 && offset + count <= sizes[buffer];
    if (!inside) this.#problems.push(`${spanText(location)} is empty or outside the buffer's ${sizes[buffer]} elements`);
  }

  #sameCounts(locations: readonly Location[]): void {
    if (locations.some(({ count }) => count !== locations[0].count)) {
      this.#problems.push(`its operands have different counts: ${locations.map(({ count }) => count).join(', ')}`);
    }
  }

  #overlap(a: Location, b: Location): boolean {
    const same = (a.rank ?? this.#rank) === (b.rank ?? this.#rank) && a.buffer === b.buffer;
    return same && a.offset < b.offset + b.count && b.offset < a.offset + a.count;
  }
}

/** Text of a location: `data[0, 8)` or `data[0, 8) of 3`. */
export function spanText(location: Location): string {
  const { buffer, offset, count, rank } = location;
  return `${buffer}[${offset}, ${offset + count})${rank === undefined ? '' : ` of ${rank}`}`;
}
