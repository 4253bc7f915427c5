/** The core that the scheduled groups of a world share, with a link for each group. The core's arbiter also counts the process's other
 *  traffic. It must not know how a group orders its calls. */
import { hostname } from 'node:os';
import type { Arbiter } from '../../../scheduler/arbiter.ts';
import { Core } from '../../../scheduler/core.ts';
import { observeAll, TaskProfiler } from '../../../scheduler/profiler.ts';
import { TimelineFile } from '../../../trace/timeline-file.ts';
import type { TraceRecorder } from '../../../trace/recorder.ts';
import type { CostModel } from '../../../plan/cost.ts';
import { schedulingOf } from '../../../call/group-spec.ts';
import type { WorldEnvironment } from '../engine/environment.ts';
import type { GroupWorld } from '../engine/group-context.ts';
import { rememberedPoints } from './remembered-points.ts';
import { Schedule, type ScheduledEngine } from './schedule.ts';

/** Operations have limits of their own, which name who is late. */
const never = 0x7fffffff;

export interface SchedulesWorld extends Pick<GroupWorld, 'env' | 'findCulprit'> {
  readonly arbiter: Arbiter;
  /** Rates of this world; undefined where nothing is chosen by them. */
  readonly model: CostModel | undefined;
}

export class Schedules {
  readonly core: Core;
  readonly #world: SchedulesWorld;
  /** The timeline of this rank's scheduler alone. */
  readonly #timeline: TimelineFile | undefined;
  #isOpened = false;

  constructor(world: SchedulesWorld) {
    this.#world = world;
    const { settings, recorder, clock } = world.env;
    const { creditBytes, partitionBytes } = schedulingOf(settings);
    const { trace } = recorder;
    this.#timeline = timelineOf(world.env);
    const recorders = [trace, this.#timeline?.recorder].filter((recorder) => recorder?.enabled === true);
    const observer = observeAll(recorders.map((recorder) => new TaskProfiler(recorder as TraceRecorder)));
    this.core = new Core({ clock, creditBytes, partitionBytes, timeoutMs: never, observer, arbiter: world.arbiter });
    this.core.start();
  }

  /** The schedule of a group that has just been made; undefined: it has none. */
  open(engine: ScheduledEngine): Schedule | undefined {
    const { spec, links } = engine;
    const { scheduling } = spec;
    if (scheduling === undefined) return undefined;
    this.#isOpened = true;
    const { log, settings } = this.#world.env;
    return new Schedule({
      world: this.#world,
      engine,
      scheduling,
      core: this.core,
      memory:
        scheduling.tuning &&
        rememberedPoints({
          folder: settings.scheduleTuningDir,
          world: spec.topology.hosts.map((ranks) => ranks.length).join('-'),
          network: networkOf(links, this.#world.model),
          space: scheduling.tuning.space,
          log,
        }),
    });
  }

  /** The world is left. */
  end(): void {
    if (this.#isOpened) this.#timeline?.write();
  }
}

function timelineOf({ rank, clock, log, settings }: WorldEnvironment): TimelineFile | undefined {
  const { scheduleTimeline: path, traceEvents: eventsMax } = settings;
  if (path === '' || rank !== 0) return undefined;
  return new TimelineFile({ path, clock, log, thread: 'scheduler', eventsMax, process: { rank, host: hostname(), pid: process.pid } });
}

/** Fabrics, and how fast the network was measured to be, within a factor of two. */
function networkOf(links: ScheduledEngine['links'], model: CostModel | undefined): string {
  const fabrics = [...new Set(links.flatMap((link) => link?.fabric ?? []))].toSorted((a, b) => (a < b ? -1 : 1));
  const name = fabrics.length === 0 ? 'alone' : fabrics.join('+');
  if (model === undefined) return name;
  return `${name}-${2 ** Math.round(Math.log2(8e-6 / model.networkByte))}mbit`;
}
