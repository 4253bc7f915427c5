/** The comm side of a process: joins the world, then carries out commands of the facades. Runs in the comm thread or, for
 *  tests and simulation, inline. Everything it needs from the machine comes as an argument. */
import { must } from '../../base/assert.ts';
import { ShoalError } from '../../base/errors.ts';
import { exhaustion, isExhaustion } from '../../base/exhaustion.ts';
import { tunedWorldOf } from '../../collectives/tuning.ts';
import type { Fabric } from '../../fabric/fabric.ts';
import type { CostModel } from '../../plan/cost.ts';
import type { BufferName } from '../../plan/ir.ts';
import type { Topology } from '../../plan/topology.ts';
import { bootstrap } from './bootstrap.ts';
import { JoinLimit } from '../../membership/join-limit.ts';
import { joinTogether } from '../../membership/joining.ts';
import type { ChangeRequest, ChangedGroup, Command, CommEvent, Joined, SharedBuffer, WorldPlan } from '../shared/comm-protocol.ts';
import { jobFailed, noteCause, storeLost } from '../../store/ended-ranks.ts';
import type { GroupEngine } from './group-engine.ts';
import { worldSpec, type GroupSpec } from '../../call/group-spec.ts';
import { RankTeller } from '../../metrics/rank-teller.ts';
import { worldGroupId } from '../../membership/group-numbers.ts';
import type { BoundBuffer, Buffers } from '../../call/local-buffers.ts';
import { startMemorySamples, type MemorySamples } from '../../trace/memory-samples.ts';
import { measureArithmetic } from './links/calibrate.ts';
import { changeGroup } from './changing.ts';
import { joinRunning } from './newcomer.ts';
import { HashStore } from '../../store/hash-store.ts';
import type { Store } from '../../store/store.ts';
import { StoreDesk } from './store-desk.ts';
import type { CommEnvironment } from './engine/environment.ts';
import { World } from './world.ts';

export class CommCore {
  readonly #plan: WorldPlan;
  readonly #environment: CommEnvironment;
  readonly #emit: (event: CommEvent) => void;
  #store: Store | undefined;
  /** The desk of the store, made when a program uses the store. */
  #desk: StoreDesk | undefined;
  #world: World | undefined;
  #memory: MemorySamples | undefined;
  readonly #teller: RankTeller;
  /** The group of all ranks that go on. */
  #wholeGroup = worldGroupId;
  /** The reason for which the job has failed. */
  #jobFailure: ShoalError | undefined;
  readonly #over = new AbortController();

  constructor(plan: WorldPlan, environment: CommEnvironment, emit: (event: CommEvent) => void) {
    this.#plan = plan;
    this.#environment = environment;
    this.#emit = emit;
    const { counters } = environment.recorder;
    this.#teller = new RankTeller({ ...environment, ...plan, counters, facts: () => this.#open.facts });
  }

  /** Joins the world; `ready` or `failed` follows. Never rejects. */
  async start(): Promise<void> {
    const { clock, checkDescriptors } = this.#environment;
    const { rank, size, joinTimeoutMs, joins = false, settings } = this.#plan;
    try {
      if (size === 1 && !joins && !settings.grows) {
        this.#world = this.#newWorld('alone', []);
        await this.#ready(
          { hosts: [[0]], topology: { hosts: [[0]] }, fabricOf: [['self']], model: undefined, linkFrom: undefined },
          0,
          joinTimeoutMs,
        );
        return;
      }
      const limit = new JoinLimit(clock, joinTimeoutMs);
      const { name, store, servedBy, isLaunched, fabrics } = await this.#environment.meet(this.#plan);
      this.#store = store;
      const world = this.#newWorld(name, fabrics);
      this.#world = world;
      const ratesOf = (topology: Topology): CostModel | undefined =>
        tunedWorldOf(this.#plan.tuning?.tuning, { topology, loadStore: true, order: settings.order })?.rates;
      if (joins) await this.#joinRunning(world, { store, limit });
      else
        await joinTogether({ store, servedBy, rank, clock, limit, checkDescriptors }, async (signal) => {
          const joined = await bootstrap({ world, store, limit, ratesOf, signal });
          world.model = joined.model;
          this.#environment.log.debug(`links: ${joined.fabricOf[rank].map((fabric, peer) => `${peer}:${fabric}`).join(' ')}`);
          await this.#ready(joined, rank === 0 ? 0 : await world.linkProbe.clockOffsetMs(world.link(0)), limit.leftMs);
        });
      if (isLaunched) this.#whenJobFails(store).catch((thrown: unknown) => this.#failWithJob(ShoalError.from(thrown)));
      void this.#teller.answer(store, isLaunched ? undefined : name);
    } catch (thrown) {
      const error = exhaustion(`rank ${rank}`, thrown, 'joining', { rank }) ?? ShoalError.from(thrown);
      this.#tellCause(error);
      // Ranks that have joined already hear of it by the group.
      this.#world?.group(worldGroupId)?.fail(error);
      await this.#world?.lastWords.heard();
      this.#emit({ type: 'failed', error: error.toData() });
      await this.#shutDown(0);
    }
  }

  /** Never throws: whoever gave the command could not catch it. */
  handle(command: Command): void {
    try {
      this.#carryOut(command);
    } catch (thrown) {
      const error = this.#errorOf(thrown);
      if ('work' in command) this.#done(command.work, error);
      else this.#world?.fail(error);
    }
  }

  #carryOut(command: Command): void {
    switch (command.type) {
      case 'map':
        this.#open.regions.adopt(command.key, command.share);
        return;
      case 'unmap':
        this.#open.regions.abandon(command.regionId);
        return;
      case 'collective':
        this.#attempt(command, () => this.#collective(command));
        return;
      case 'scheduled':
        this.#attempt(command, () => this.#scheduled(command));
        return;
      case 'schedule':
        this.#open.group(command.group)?.schedule?.setScheduling(command.scheduling);
        return;
      case 'ring':
        this.#open.group(command.group)?.ring(command.doorbells);
        return;
      case 'message':
        this.#attempt(command, () => this.#message(command));
        return;
      case 'open-group':
        this.#settle(command.work, this.#open.openGroup(command.spec, command.timeoutMs));
        return;
      case 'close-group':
        this.#settle(command.work, this.#open.closeGroup(command.group, command.timeoutMs));
        return;
      case 'change-group':
        this.#answer(command.work, this.#change(command));
        return;
      case 'fail-group':
        this.#open.group(command.group)?.fail(ShoalError.fromData(command.error));
        this.#settle(command.work, this.#open.lastWords.heard());
        return;
      case 'trouble':
        this.#open.tellTrouble(command.error);
        this.#settle(command.work, this.#open.lastWords.heard());
        return;
      case 'store':
        this.#useStore(command);
        return;
      case 'store-abort':
        this.#desk?.abort(command.ticket);
        return;
      case 'trace':
        this.#memory?.sample();
        this.#emit({ type: 'done', work: command.work, answer: this.#environment.recorder.trace.snapshot() });
        return;
      case 'close':
        this.#settle(command.work, Promise.all([this.#teller.send(this.#open.env.name), this.#shutDown(command.timeoutMs)]));
        return;
    }
  }

  /** Ends the world when nobody gives commands any more. */
  async end(): Promise<void> {
    await this.#shutDown(0);
  }

  #newWorld(name: string, fabrics: readonly Fabric[]): World {
    return new World({
      ...this.#environment,
      ...this.#plan,
      name,
      fabrics,
      tell: (event) => this.#emit(event),
      onFailure: (group, error) => {
        this.#tellCause(error);
        this.#environment.onFailure?.(group, error);
      },
    });
  }

  /** Tells other ranks the cause before the script hears of the error: the script may end this process, and ranks that fail by that say
   *  so later. */
  #tellCause(error: ShoalError): void {
    if (!this.#store) return;
    const told = noteCause(this.#store, this.#plan.rank, error);
    this.#world?.lastWords.tellStore(told);
  }

  /** The ranks of a world that may grow need the store at all times, and may be on other machines than the launcher that serves it. */
  #whenJobFails(store: Store): Promise<never> {
    const { signal } = this.#over;
    const failed = jobFailed(store, this.#plan.rank, signal);
    return this.#plan.settings.grows ? Promise.race([failed, storeLost(store, signal)]) : failed;
  }

  /** Whoever waits for another rank, or for a key, cannot know that the launcher is about to end it. */
  #failWithJob(error: ShoalError): void {
    this.#jobFailure = error;
    this.#desk?.fail(error);
    this.#world?.fail(error);
  }

  /** Opens the group of all ranks and reports. */
  async #ready(joined: Joined, clockOffsetMs: number, timeoutMs: number): Promise<void> {
    this.#open.joined = joined;
    await this.#open.openGroup(worldSpec(this.#plan, joined.topology), timeoutMs);
    this.#report(clockOffsetMs);
  }

  /** Joins a world that has begun before. Its first rank's clock stands for rank 0's. */
  async #joinRunning(world: World, { store, limit }: { readonly store: Store; readonly limit: JoinLimit }): Promise<void> {
    const { signal } = this.#over;
    const spec = await Promise.race([joinRunning({ world, store, limit, signal }), this.#whenJobFails(store)]);
    this.#report(await world.linkProbe.clockOffsetMs(world.link(spec.globalRanks[0])), spec);
  }

  #report(clockOffsetMs: number, spec?: GroupSpec): void {
    const { joined } = this.#open;
    this.#sampleMemory(this.#open);
    const { rank } = this.#plan;
    const { hosts } = joined;
    const ofHost = must(
      hosts.find((ranks) => ranks.includes(rank)),
      () => 'this rank is on a host',
    );
    if (spec) this.#wholeGroup = spec.id;
    void this.#teller.begin(ofHost.indexOf(rank), spec?.globalRanks.length);
    this.#emit({ type: 'ready', info: { ...joined, clockOffsetMs, copyByte: this.#copyByte(joined.topology), spec } });
  }

  /** Seconds per byte of a copy, measured where it bounds collectives and somebody will read of it. */
  #copyByte({ hosts }: Topology): number | undefined {
    const { recorder } = this.#environment;
    if (!recorder.trace.enabled || hosts.length > 1 || hosts[0].length < 2) return undefined;
    return measureArithmetic(this.#environment).hostByte;
  }

  #sampleMemory({ regions }: World): void {
    const { residentBytes, clock, recorder } = this.#environment;
    if (residentBytes === undefined) return;
    this.#memory = startMemorySamples({ trace: recorder.trace, clock, residentBytes, registeredBytes: () => regions.bytes });
  }

  get #open(): World {
    return must(this.#world, () => 'commands come after ready');
  }

  async #change(request: ChangeRequest): Promise<ChangedGroup> {
    const changed = await changeGroup(this.#open, this.#storeOfWorld, request);
    if (request.group !== this.#wholeGroup) return changed;
    this.#wholeGroup = changed.spec.id;
    this.#teller.resized(changed.spec.globalRanks.length);
    return changed;
  }

  #collective({ work, group, ...call }: Extract<Command, { type: 'collective' }>): void {
    this.#group(group).submit({ ...call, buffers: this.#buffers(call.buffers), complete: (error, how) => this.#done(work, error, how) });
  }

  #scheduled({ work, group, buffer, ...call }: Extract<Command, { type: 'scheduled' }>): void {
    this.#group(group).scheduled.post({ ...call, buffer: this.#bound(buffer), complete: (error, how) => this.#done(work, error, how) });
  }

  #buffers(shared: Partial<Record<BufferName, SharedBuffer>>): Buffers {
    const buffers: Buffers = {};
    for (const name of Object.keys(shared) as BufferName[]) {
      const buffer = shared[name];
      if (buffer) buffers[name] = this.#bound(buffer);
    }
    return buffers;
  }

  #group(id: number): GroupEngine {
    const group = this.#open.group(id);
    if (!group) throw new ShoalError('closed', `group ${id} was destroyed`);
    return group;
  }

  #message(command: Extract<Command, { type: 'message' }>): void {
    const { work, direction, peer, tag, dtype, count, timeoutMs } = command;
    const group = this.#group(command.group);
    const { recorder } = this.#environment;
    const startMs = recorder.trace.now();
    const request = {
      group,
      peer,
      tag,
      dtype,
      count,
      timeoutMs,
      buffer: this.#bound(command.buffer),
      complete: (error: ShoalError | undefined, source: number | undefined) => {
        recorder.messageEnded(group.spec, { ...command, peer: source }, { startMs, error });
        if (error === undefined && direction === 'recv') this.#emit({ type: 'done', work, answer: source });
        else this.#done(work, error);
      },
    };
    if (direction === 'send') this.#open.pointToPoint.send({ ...request, peer: must(peer, () => 'messages are sent to a rank') });
    else this.#open.pointToPoint.recv(request);
  }

  #bound(buffer: SharedBuffer): BoundBuffer {
    const { key, region } = this.#open.regions.byId(buffer.regionId);
    return { key, region, offset: buffer.offset, bytes: buffer.bytes };
  }

  /** A world of one has met nobody: its store is its own. */
  get #storeOfWorld(): Store {
    return (this.#store ??= new HashStore({ clock: this.#environment.clock }));
  }

  #useStore({ work, ...call }: Extract<Command, { type: 'store' }>): void {
    this.#desk ??= new StoreDesk(this.#storeOfWorld, this.#jobFailure);
    this.#answer(work, this.#desk.carryOut(call));
  }

  async #shutDown(timeoutMs: number): Promise<void> {
    this.#over.abort();
    this.#teller.close();
    this.#memory?.close();
    await this.#desk?.close();
    await this.#world?.close(timeoutMs);
    await this.#store?.close();
  }

  /** Runs a call. One that throws has not begun. Where something is used up, the ranks that wait for this one's part hear of it. Once the
   *  group has failed, they hear why first, as when a call in flight fails: this process may end as soon as its script knows. */
  #attempt({ work, group }: { readonly work: number; readonly group: number }, run: () => void): void {
    try {
      run();
    } catch (thrown) {
      const error = this.#errorOf(thrown);
      const refuse = (): void => this.#emit({ type: 'done', work, error: error.toData(), begun: false });
      const engine = this.#open.group(group);
      if (isExhaustion(error)) engine?.fail(error);
      if (engine?.failure === undefined) refuse();
      else void this.#open.lastWords.heard().then(refuse);
    }
  }

  #errorOf(thrown: unknown): ShoalError {
    const { rank } = this.#plan;
    return exhaustion(`rank ${rank}`, thrown, 'communicating', { rank }) ?? ShoalError.from(thrown);
  }

  #settle(work: number, promise: Promise<unknown>): void {
    const settled = promise.then(() => undefined);
    this.#answer(work, settled);
  }

  /** @param promise of plain data. */
  #answer(work: number, promise: Promise<unknown>): void {
    promise.then(
      (answer) => this.#emit({ type: 'done', work, answer }),
      (thrown: unknown) => this.#done(work, ShoalError.from(thrown)),
    );
  }

  #done(work: number, error: ShoalError | undefined, how?: { readonly begun: boolean }): void {
    this.#emit(error ? { type: 'done', work, error: error.toData(), begun: how?.begun } : { type: 'done', work });
  }
}
