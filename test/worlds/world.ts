/** Runs a world: a launcher, the ranks and servers that it starts, their networks, memory and time, in this process. The
 *  invariants that must hold, whatever happens, are checked here. */
import { PassThrough, type Writable } from 'node:stream';
import { isShoalError, ShoalError } from '../../src/base/errors.ts';
import { seededRandom } from '../../src/base/random.ts';
import { SeededWorld, type Role } from '../../src/base/testing/seeded-world.ts';
import type { CommGroup } from '../../src/group/api/process-group.ts';
import { InProcessSite, type InProcessOptions } from '../../src/group/testing/in-process-world.ts';
import { launch } from '../../src/launch/launch.ts';
import type { LaunchResult } from '../../src/launch/launch-options.ts';
import type { JobFailure } from '../../src/launch/node-records.ts';
import { openStore } from '../../src/store/open-store.ts';
import { VirtualNetwork } from '../../src/store/testing/virtual-network.ts';
import { runRank } from './rank-role.ts';
import { ServerSite } from './server-roles.ts';
import { VirtualHost, type VirtualProcess } from './virtual-host.ts';
import type { Fault, Path, WorldPlan } from './world-plan.ts';

export interface Verdict {
  /** Violations; empty: all is well. */
  readonly problems: readonly string[];
  /** Text that is equal for equal plans. */
  readonly trace: string;
  readonly events: number;
  /** Number of faults that hit something. */
  readonly hits: number;
  readonly generations: number;
  readonly failed: boolean;
}

const timeoutMs = 8000;
const joinTimeoutMs = 15_000;
/** Longest time of a generation: two limits one after another, and the time that the launcher gives all to end. */
const generationMs = 100_000;

/** @param output of the launcher; default: none. */
export async function runWorld(plan: WorldPlan, output?: Writable): Promise<Verdict> {
  return new Run(plan).run(output);
}

/** The failure of a rank of one generation. */
interface Outcome {
  readonly rank: number;
  readonly error: ShoalError;
}

/** Events of one generation. */
interface Generation {
  readonly site: InProcessSite;
  readonly outcomes: Outcome[];
  /** Ranks that were started; the others were not any more. */
  readonly started: Set<number>;
  /** Ranks that have made all their calls. */
  readonly done: Set<number>;
  /** Ranks that may be named: killed, stopped, cut off, or with another call. */
  readonly harmed: Set<number>;
  /** Names of servers and stores, in the words of errors. */
  readonly others: Set<string>;
}

class Run {
  readonly #plan: WorldPlan;
  readonly #world: SeededWorld;
  readonly #streams: VirtualNetwork;
  readonly #host: VirtualHost;
  readonly #servers: ServerSite;
  readonly #launchers: Role[] = [];
  /** Names of lost launchers, in the words of errors. */
  readonly #lost: string[] = [];
  readonly #generations: Generation[] = [];
  readonly #problems: string[] = [];
  #hits = 0;
  #joined = 0;

  constructor(plan: WorldPlan) {
    const { seed, delayedOneIn, delayMs } = plan;
    this.#plan = plan;
    this.#world = new SeededWorld({ random: seededRandom(seed), delayedOneIn, delayMs });
    this.#streams = new VirtualNetwork(this.#world);
    this.#host = new VirtualHost(this.#world, {
      rank: (process) => this.#runRank(process),
      server: (process) => this.#servers.serve(process),
    });
    this.#servers = new ServerSite(this.#host, this.#streams);
    this.#plant('start');
  }

  async run(output: Writable | undefined): Promise<Verdict> {
    const { maxRestarts, nodes = 1 } = this.#plan;
    const said = new PassThrough();
    if (output === undefined) said.resume();
    else said.pipe(output);
    const results = Array.from({ length: nodes }, (_, node) => this.#launch(node, said));
    let outcomes: (LaunchResult | undefined)[] = [];
    try {
      outcomes = await this.#world.until(Promise.all(results), generationMs * (maxRestarts + 1));
      this.#judge(outcomes.filter((each) => each !== undefined));
      await this.#judgeEnd();
    } catch (thrown) {
      this.#problems.push(thrown instanceof Error ? `${thrown.message}; running: ${this.#host.running.join(', ')}` : String(thrown));
    }
    for (const fault of this.#host.faults) this.#problems.push(fault instanceof Error ? fault.message : String(fault));
    const words = this.#generations.map(({ outcomes }) => outcomes.map(({ rank, error }) => `${rank}: ${error.message}`).join('; '));
    return {
      problems: this.#problems,
      trace: [this.#world.trace, ...words, ...outcomes.map((outcome) => outcome?.failure?.text ?? '')].join('\n'),
      events: this.#world.events,
      hits: this.#hits,
      generations: this.#generations.length,
      failed: outcomes.some((outcome) => outcome?.failure !== undefined),
    };
  }

  /** Launches one node; undefined when its launcher was killed. */
  #launch(node: number, said: PassThrough): Promise<LaunchResult | undefined> {
    const { ranks, nodes = 1, maxRestarts, servers, replicas, seed } = this.#plan;
    const launcher = this.#world.role(node === 0 ? 'launcher' : `launcher ${node}`);
    this.#launchers.push(launcher);
    const firstHalf = Math.ceil(ranks / nodes);
    const killed = new Promise<undefined>((resolve) => launcher.onEnd(() => resolve(undefined)));
    const { result } = launch({
      clock: launcher.clock,
      random: seededRandom(seed + 1 + node),
      surroundings: { startGuard: () => this.#host.guard(launcher), network: this.#streams.of(launcher) },
      command: ['rank'],
      directory: '/',
      environment: { SHOAL_LOG_LEVEL: 'error', SHOAL_TIMEOUT_MS: String(timeoutMs) },
      localSize: node === 0 ? firstHalf : ranks - firstHalf,
      ...(nodes > 1 && { nodes, node, masterAddress: '127.0.0.1', secret: 'secret' }),
      maxRestarts,
      job: 'world',
      stdout: said,
      stderr: said,
      ...(servers > 0 && { servers: { command: ['server'], servers, replicas } }),
    });
    return Promise.race([result.catch(notStarted), killed]);
  }

  // ── roles ──────────────────────────────────────────────────────────────────────────────────────────────────────

  async #runRank(process: VirtualProcess): Promise<void> {
    const { role, environment } = process;
    const rank = Number(environment['RANK']);
    const generation = this.#generation(Number(environment['TORCHELASTIC_RESTART_COUNT']));
    generation.started.add(rank);
    role.onEnd(() => generation.site.crash(rank));
    try {
      await runRank(process, {
        plan: this.#plan,
        join: () => this.#join(generation, rank),
        connect: this.#plan.servers > 0 ? () => this.#servers.connect(process) : undefined,
      });
      generation.done.add(rank);
    } catch (thrown) {
      if (isShoalError(thrown)) generation.outcomes.push({ rank, error: thrown });
      throw thrown;
    }
  }

  async #join(generation: Generation, rank: number): Promise<CommGroup> {
    const group = await generation.site.start(rank);
    if (generation === this.#generations[0] && ++this.#joined === this.#plan.ranks) this.#plant('joined');
    return group;
  }

  /** Plants the faults that are to happen some events from now on. */
  #plant(after: Fault['after']): void {
    const faults = this.#plan.faults.filter((fault) => fault.after === after);
    for (const fault of faults) this.#world.at(this.#world.events + fault.at, () => this.#hit(fault));
  }

  #generation(index: number): Generation {
    this.#generations[index] ??= {
      site: new InProcessSite(this.#plan.ranks, this.#siteOptions()),
      outcomes: [],
      started: new Set(),
      done: new Set(),
      harmed: new Set(this.#plan.differs === undefined ? [] : [this.#plan.differs.rank]),
      others: new Set(this.#lost),
    };
    return this.#generations[index];
  }

  #siteOptions(): InProcessOptions {
    const { ranks, seed } = this.#plan;
    const processOf = (rank: number): VirtualProcess => this.#host.named(`rank ${rank}`)!;
    return {
      ...pathOptions(this.#plan.path, ranks),
      seed,
      settings: { timeoutMs, calibration: seed % 4 === 0 ? 'measure' : 'assume' },
      joinTimeoutMs,
      role: (rank) => processOf(rank)?.role ?? this.#world.role('gone'),
      openStore: async (rank) => {
        const { role, environment } = processOf(rank);
        const random = seededRandom(seed + rank);
        const opened = await openStore('env://', { clock: role.clock, random, network: this.#streams.of(role), environment, timeoutMs });
        return opened.store;
      },
    };
  }

  // ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

  #hit(fault: Fault): void {
    const { who } = fault;
    if (who.startsWith('launcher')) {
      this.#hitLauncher(fault, Number(who.slice(9)));
      return;
    }
    const process = this.#host.named(who);
    if (process === undefined) return;
    const rank = who.startsWith('rank') ? Number(who.slice(5)) : undefined;
    // The fault may be the first event of its generation.
    const index = rank === undefined ? this.#generations.length - 1 : Number(process.environment['TORCHELASTIC_RESTART_COUNT']);
    if (index < 0) return;
    const generation = this.#generation(index);
    const hit = (): void => {
      this.#hits++;
      blame(generation, who);
    };
    switch (fault.kind) {
      case 'kill':
        hit();
        this.#host.kill(who);
        return;
      case 'exit':
        hit();
        process.exit(fault.code ?? 3);
        return;
      case 'stop':
        hit();
        this.#stop(process.role, fault.forMs);
        return;
      case 'cut':
        if (fault.what === 'store' && this.#streams.cut(process.role, fault.index)) hit();
        if (fault.what === 'servers' && this.#servers.cut(process.pid, fault.index)) this.#hits++;
        if (fault.what === 'link' && rank !== undefined) {
          const peer = generation.site.cut(rank, fault.index);
          if (peer === undefined) return;
          hit();
          generation.harmed.add(peer);
        }
    }
  }

  /** Ends a launcher: its processes end with it, and node 0's has the store. */
  #hitLauncher(fault: Fault, node: number): void {
    const launcher = this.#launchers[node];
    const generation = this.#generations.at(-1);
    if (launcher.ended || generation === undefined) return;
    const peer = fault.kind === 'cut' ? this.#streams.cut(launcher, fault.index) : undefined;
    if (fault.kind === 'cut' && peer === undefined) return;
    this.#hits++;
    this.#lost.push('launcher', 'store');
    for (const each of this.#lost) generation.others.add(each);
    if (peer !== undefined) blame(generation, peer.name);
    if (fault.kind === 'stop') this.#stop(launcher, fault.forMs);
    if (fault.kind !== 'kill') return;
    for (const name of this.#host.namesOf(launcher)) blame(generation, name);
    // Without the store the other ranks do not learn why a rank ends.
    if (node === 0) for (let rank = 0; rank < this.#plan.ranks; rank++) generation.harmed.add(rank);
    launcher.end();
  }

  #stop(role: Role, forMs: number): void {
    role.stop();
    this.#world.time.setTimer(forMs, () => role.resume());
  }

  // ── judgement ──────────────────────────────────────────────────────────────────────────────────────────────────

  #judge(results: readonly LaunchResult[]): void {
    for (const [index, generation] of this.#generations.entries()) {
      const { harmed, outcomes } = generation;
      // The store does not know which rank should have set a key of the script: a rank that waited for it has failed by itself.
      for (const { rank, error } of outcomes)
        if (harmed.size > 0 && error.code === 'timeout' && /\/user\/action-|did not answer within/.test(error.message)) harmed.add(rank);
      // Ranks that wait for a server or store which was killed or stopped are late for everything else, and others wait for them
      // in vain; so do ranks that fail because of it.
      for (const { rank, error } of outcomes) {
        const names = [...generation.others].some((each) => error.message.includes(each));
        if (generation.others.size > 0 && (error.code === 'timeout' || names)) harmed.add(rank);
        if (generation.others.size > 0 && error.code === 'timeout' && error.peer !== undefined) harmed.add(error.peer);
      }
      // A transfer or a round that one rank keeps from ending fails for the ranks that wait for it, not for its groups.
      for (const { rank, error } of outcomes)
        if (harmed.size > 0 && /took part in a transfer|cannot be completed|ha(s|ve) not pushed/.test(error.message)) harmed.add(rank);
      // If messages take seconds, a server's message that names the missing rank may come too late.
      for (const { rank, error } of outcomes)
        if (harmed.size > 0 && this.#plan.delayMs > 50 && error.message.endsWith('has not answered')) harmed.add(rank);
      // Ranks that disagree fail alike.
      for (const { rank, error } of outcomes) if (this.#plan.differs !== undefined && error.code === 'mismatch') harmed.add(rank);
      for (const outcome of outcomes) this.#judgeError(outcome, generation, index);
    }
    this.#judgeReaction();
    const last = this.#generations.at(-1);
    if (last === undefined) return this.#complain('no generation was started');
    const texts = new Set(results.map(({ failure }) => failure?.text));
    if (this.#lost.length === 0 && texts.size > 1) this.#complain(`the launchers disagree: ${[...texts].join('; ')}`);
    for (const { failure } of results) {
      if (failure !== undefined) this.#judgeFailure(failure, last);
      else if (last.outcomes.length > 0) this.#complain(`the job succeeded, although rank ${last.outcomes[0].rank} failed`);
    }
  }

  #judgeFailure({ rank, text }: JobFailure, last: Generation): void {
    // A launcher that loses the others does not know of further generations.
    const known = this.#lost.length > 0 ? this.#generations : [last];
    const harmed = new Set(known.flatMap((each) => [...each.harmed]));
    // If ranks disagree, each has failed by itself.
    if (this.#plan.differs !== undefined && last.outcomes.length > 0) return;
    const names = [...[...harmed].map((each) => `rank ${each}`), ...known.flatMap(({ others }) => [...others])];
    const said = last.outcomes.find((each) => each.rank === rank)?.error.message ?? '';
    // A worker that a server misses is known to the launcher only through the rank that it quotes.
    const missed = [...harmed].some((each) => new RegExp(`\\bworker ${each}\\b`).test(said));
    const blamed = missed || (rank !== undefined && harmed.has(rank)) || names.some((each) => text.includes(each));
    if (!blamed) this.#complain(`the launcher says that ${rank === undefined ? 'no rank' : `rank ${rank}`} failed first: ${text}`);
  }

  /** Checks that survivable faults are survived, and that ranks do not wait for an ended process until a limit of time. */
  #judgeReaction(): void {
    const { faults, delayMs, differs, actions } = this.#plan;
    // The store does not know which rank should have set a key, and a rank that waits for it is late for everything else.
    if (differs !== undefined && (differs.how === 'calls' || actions.some(({ on }) => on === 'store'))) return;
    const outcomes = this.#generations.flatMap((generation) => generation.outcomes);
    const stoppedMs = faults.reduce((sum, fault) => sum + (fault.kind === 'stop' ? fault.forMs : 0), 0);
    if (differs === undefined && stoppedMs + 10 * delayMs < timeoutMs && faults.every((fault) => isSurvivable(fault, this.#plan))) {
      for (const { rank, error } of outcomes) this.#complain(`rank ${rank} has not survived it: ${error.code}: ${error.message}`);
    }
    if (delayMs > 50 || !faults.every(({ kind, who }) => (kind === 'kill' || kind === 'exit') && !who.startsWith('launcher'))) return;
    for (const { rank, error } of outcomes)
      if (error.code === 'timeout') this.#complain(`rank ${rank} has waited for who has ended: ${error.message}`);
    for (const { started, harmed, done, outcomes: ended } of this.#generations)
      for (const rank of started)
        if (!harmed.has(rank) && !done.has(rank) && !ended.some((each) => each.rank === rank))
          this.#complain(`rank ${rank} has not been told that another rank has ended`);
  }

  /** Checks that an error names a rank that really failed, or another cause. */
  #judgeError({ rank, error }: Outcome, { harmed, others, outcomes }: Generation, index: number): void {
    if (harmed.has(rank)) return;
    // A rank sees that the launcher of another node ends one there, a little before its own launcher ends it.
    if (this.#plan.nodes === 2 && (harmed.size > 0 || others.size > 0) && this.#host.wasTerminated(`rank ${error.peer}`)) return;
    // A server misses workers, and does not know why they have ended; nor does the launcher of a rank that has waited for them at a server.
    const [, worker, ended] = /\bworker (\d+)\b|^rank (\d+) exited\b/.exec(error.message) ?? [];
    const failed = worker ?? (this.#plan.servers > 0 ? ended : undefined);
    if (harmed.size > 0 && outcomes.some((each) => each.rank !== rank && String(each.rank) === failed)) return;
    const named = [...harmed].some((each) => error.peer === each || new RegExp(`\\b(rank|worker) ${each}\\b`).test(error.message));
    if (named || [...others].some((each) => error.message.includes(each))) return;
    this.#complain(`rank ${rank} of generation ${index} names nobody who failed: ${error.code}: ${error.message}`);
  }

  /** Checks that nothing is left. */
  async #judgeEnd(): Promise<void> {
    await this.#world.pass(0);
    const left = [...this.#generations.flatMap(({ site }) => site.left), ...this.#servers.left];
    if (this.#streams.size > 0) left.push(`${this.#streams.size} streams`);
    if (this.#host.running.length > 0) left.push(...this.#host.running);
    if (left.length > 0) this.#complain(`left at the end: ${left.join(', ')}`);
  }

  #complain(problem: string): void {
    this.#problems.push(problem);
  }
}

/** Records that errors may name this process: as a rank, or in the words of errors. */
function blame({ harmed, others }: Generation, name: string): void {
  if (name.startsWith('rank')) harmed.add(Number(name.slice(5)));
  else others.add(name.replace('standby', 'server'));
}

/** The result of a launcher that was lost before it started anything. */
function notStarted(thrown: unknown): LaunchResult {
  const { message } = ShoalError.from(thrown);
  return { exitCode: 1, failure: { node: 1, host: '', exitCode: 1, text: message, final: true }, changes: [] };
}

/** True for faults that a job survives: a process that goes on before it is given up, a session that goes on over another
 *  connection, a server that has a standby. */
function isSurvivable(fault: Fault, { replicas, faults }: WorldPlan): boolean {
  if (fault.kind === 'stop') return true;
  if (fault.kind === 'cut') return fault.what === 'servers';
  return fault.kind === 'kill' && /^(server|standby)/.test(fault.who) && replicas === 2 && faults.length === 1;
}

function pathOptions(path: Path, ranks: number): InProcessOptions {
  const each = Array.from({ length: ranks }, (_, rank) => rank);
  switch (path) {
    case 'engine':
      return {};
    case 'host':
      return { fastPath: true };
    case 'network':
      return { kind: 'network' };
    case 'network fast path':
      return { kind: 'network', fastPath: true, hostIds: each.map((rank) => `host ${rank}`) };
    case 'two hosts':
      return { hostIds: each.map((rank) => (rank < ranks / 2 ? 'a' : 'b')) };
  }
}
