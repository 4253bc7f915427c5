/** A plan as text, for people: one line per step.
 *
 *      rank 0 · scratch 16 · signals 1
 *        0  put     data[16, 40) → rank 1 scratch[0, 24), raises 0
 *        1  wait    0 ≥ 1
 *        2  reduce  data[0, 16) := (data[0, 16) ⊕ scratch[0, 16)), final */
import type { Plan, Program, Step } from './ir.ts';
import { spanText } from './structure.ts';

/** Prints all programs, or that of one rank. */
export function printPlan(plan: Plan, options: { readonly rank?: number } = {}): string {
  const programs = options.rank === undefined ? plan.programs : plan.programs.filter(({ rank }) => rank === options.rank);
  return [heading(plan), ...programs.map(printProgram)].join('\n\n');
}

function heading({ algorithm, request, association, partials }: Plan): string {
  const hosts = request.topology.hosts.map((host) => `[${host.join(' ')}]`).join(' ');
  const facts = [`${algorithm} ${request.collective}`, `${request.count} elements`, `hosts ${hosts}`];
  if (request.root !== undefined) facts.push(`root ${request.root}`);
  if (request.counts !== undefined) facts.push(`counts ${request.counts.join(' ')}`);
  if (request.pieceCount !== undefined) facts.push(`pieces ≤ ${request.pieceCount}`);
  if (association !== 'none') facts.push(`${association} order`);
  if (partials) facts.push('partial results travel');
  return facts.join(' · ');
}

function printProgram({ rank, entry, channels, scratchCount, signalCount }: Program): string {
  const lines = [`rank ${rank} · scratch ${scratchCount} · signals ${signalCount}`];
  if (entry.length > 0) lines.push(' entry', ...printSteps(entry));
  channels.forEach((steps, channel) => {
    if (channels.length > 1 || entry.length > 0) lines.push(` channel ${channel}`);
    lines.push(...printSteps(steps));
  });
  return lines.join('\n');
}

function printSteps(steps: readonly Step[]): string[] {
  const width = String(steps.length - 1).length + 1;
  return steps.map((step, index) => ` ${String(index).padStart(width)}  ${step.kind.padEnd(6)}  ${printStep(step)}`.trimEnd());
}

function printStep(step: Step): string {
  switch (step.kind) {
    case 'put':
      return `${spanText(step.source)} → rank ${step.peer} ${spanText(step.target)}, raises ${step.signal}`;
    case 'signal':
      return `rank ${step.peer}, raises ${step.signal}`;
    case 'wait':
      return `${step.signal} ≥ ${step.value}`;
    case 'copy':
      return `${spanText(step.target)} := ${spanText(step.source)}`;
    case 'reduce':
      return `${step.targets.map(spanText).join(', ')} := ${printTree(step)}${step.final ? ', final' : ''}`;
    case 'flush':
      return '';
  }
}

function printTree({ sources, tree }: Extract<Step, { kind: 'reduce' }>): string {
  const stack: string[] = [];
  for (const entry of tree) {
    if (entry >= 0) stack.push(spanText(sources[entry]));
    else stack.push(`(${stack.splice(-2).join(' ⊕ ')})`);
  }
  return stack.join(' ');
}
