/** Defects that were mended once, put back by small changes of the text: the worlds must find each. */
import type { WorldPlan } from './world-plan.ts';

export interface MendedDefect {
  /** What went wrong. */
  readonly name: string;
  readonly file: string;
  /** Stands in the file exactly once. */
  readonly mended: string;
  readonly broken: string;
  /** Worlds in which it could show. Default: all. */
  readonly among?: (plan: WorldPlan) => boolean;
  /** Of the world that has shown it. */
  readonly seed?: number;
}

const losesServer = ({ replicas, faults }: WorldPlan): boolean =>
  replicas === 2 && faults.some(({ kind, who }) => kind === 'kill' && /server|standby/.test(who));

export const mendedDefects: readonly MendedDefect[] = [
  {
    name: 'a call that a failed group refuses ends before the others have heard why',
    file: 'src/group/thread/comm-core.ts',
    mended: 'if (engine?.failure === undefined) refuse();',
    broken: 'if (engine !== null) refuse();',
    seed: 488,
  },
  {
    name: 'whoever ends because of another rank is taken for the reason by those who do not know it yet',
    file: 'src/group/engine/group-engine.ts',
    mended: 'await this.#world.lastWords.heard();\n    this.#endAll(error);',
    broken: 'this.#endAll(error);',
    seed: 17,
  },
  {
    name: 'a rank that timed out and has gone is blamed by those that are about to come to the same conclusion',
    file: 'src/group/engine/group-engine.ts',
    mended: 'if (this.#inquiry.hasHeardOf(rank)) return;',
    broken: '',
  },
  {
    name: 'the launcher blames the rank whose end it sees first',
    file: 'src/launch/node-agreement.ts',
    mended: 'if (rank === undefined) return last;',
    broken: 'if (rank !== -1) return last;',
    seed: 59,
  },
  {
    name: 'the launcher does not wait for what a rank that has ended has said last',
    file: 'src/launch/node-agreement.ts',
    mended: 'const onItsWayMs = 5000;',
    broken: 'const onItsWayMs = 500;',
    seed: 36070,
  },
  {
    name: 'ranks wait in vain for one that ended before it joined',
    file: 'src/launch/node-agreement.ts',
    mended: 'await reportEnded(this.#ranksPart(generation), rank, ending);',
    broken: 'void ending;',
    seed: 3,
  },
  {
    name: 'ranks that were started again meet the keys of their predecessors',
    file: 'src/store/open-store.ts',
    mended: 'generationPrefix(spec.generation)',
    broken: 'generationPrefix(0)',
    seed: 3,
  },
  {
    name: 'whoever gives up joining is not told apart from those that give up because of it',
    file: 'src/group/world/ended-ranks.ts',
    mended: "const consequence = error.code === 'timeout' || error.code === 'peer-lost';",
    broken: 'const consequence = false;',
    seed: 28,
  },
  {
    name: 'requests that a lost connection took with it are not sent again',
    file: 'src/kvstore/client/link.ts',
    mended: 'entry.accepted = false;\n      this.#transmit(entry);',
    broken: 'entry.accepted = false;',
    seed: 1118,
  },
  {
    name: 'a process that was stopped takes its peers for silent',
    file: 'src/kvstore/job/heartbeat.ts',
    mended: 'Math.min(nowMs - this.#tickMs, 2 * heartbeatMs)',
    broken: 'nowMs - this.#tickMs',
    seed: 834,
  },
  {
    name: 'a standby that has not the whole state takes over with what it has',
    file: 'src/kvstore/job/server-seat.ts',
    mended: 'if (view?.standby?.incarnation === own.incarnation) return',
    broken: 'if (view !== undefined) return',
    among: losesServer,
  },
  {
    name: 'a rank that leaves without its calls is waited for until the limit of time',
    file: 'src/group/engine/members.ts',
    mended: 'return calls !== undefined && calls <= sequence;',
    broken: 'return calls !== undefined && calls < -sequence;',
    seed: 121,
  },
  {
    name: 'a rank that ends because of another one is taken for the reason in groups of which that one is no member',
    file: 'src/group/world/world.ts',
    mended: "if (message.type === 'abort' || message.type === 'abort-elsewhere') link.failure = message.error;",
    broken: '',
    seed: 933,
  },
  {
    name: 'a rank that left after its call is waited for',
    file: 'src/group/diagnosis/inquiry.ts',
    mended: 'arrived: calls > sequence,',
    broken: 'arrived: false,',
    // Nobody has anything to do after the call, and some ranks have their part of it without the others.
    among: ({ actions, differs, faults }) => {
      const last = actions.at(-1);
      const leaves = last?.on === 'group' && last.kind === 'broadcast' && actions.length <= 4 && differs === undefined;
      return leaves && faults.some((fault) => fault.kind === 'stop' && fault.forMs > 8000);
    },
    seed: 70145,
  },
  {
    name: 'a rank that waits for the data of one that is stopped waits for nobody',
    file: 'src/group/engine/group-engine.ts',
    mended: 'const ranks = late.length > 0 ? late :',
    broken: 'const ranks = late.length >= 0 ? late :',
    seed: 1329,
  },
  {
    name: 'workers begin while a server has no standby yet, and lose their state with it',
    file: 'src/kvstore/client/node.ts',
    mended: 'if (topology.replicas === 2) {',
    broken: 'if (Number(topology.replicas) === 3) {',
    among: losesServer,
    seed: 1505,
  },
  {
    name: 'a send that a lost connection breaks off ends before the others have heard why',
    file: 'src/group/engine/point-to-point.ts',
    mended: "if (error.code === 'peer-lost') group.suspect(error);\n        else this.#end(transfer, error);",
    broken: 'this.#end(transfer, error);',
    among: ({ actions, faults }) => actions.some(({ on }) => on === 'ring') && faults.some(({ kind }) => kind !== 'stop'),
  },
  {
    name: 'a rank that ends because of a group that others are not in is the reason for them',
    file: 'src/group/world/world.ts',
    mended: "this.lastWords.tell(others, { type: 'abort-elsewhere', error }, error.peer);",
    broken: 'void others;',
    seed: 22353,
    among: ({ actions, faults }) => actions.some(({ on }) => on === 'subgroup') && faults.length > 0,
  },
  {
    name: 'a process that was stopped takes the store for silent',
    file: 'src/store/store-client.ts',
    mended: 'setServedTimer(clock, cancelGraceMs, ',
    broken: 'clock.setTimer(cancelGraceMs, ',
    seed: 21357,
    among: ({ actions, faults }) => actions.some(({ on }) => on === 'store') && faults.some(({ kind }) => kind === 'stop'),
  },
  {
    name: 'a wait that its client has given up is never answered',
    file: 'src/store/store-server.ts',
    mended: "this.#send(client, target, { kind: 'missing', keys });",
    broken: 'void keys;',
    seed: 2,
  },
  {
    name: 'a thread whose group suspects a rank is woken without end by what nobody reads',
    file: 'src/group/engine/group-engine.ts',
    mended: 'else this.#networkPath.rest();',
    broken: '',
    seed: 8935,
    among: ({ path, faults }) => path === 'network fast path' && faults.length > 0,
  },
  {
    name: 'a rank because of which others end notes one of them as the reason of its own end',
    file: 'src/group/engine/group-engine.ts',
    mended: 'const because = failure?.peer === undefined ? undefined : failure;',
    broken: 'const because = failure?.peer === undefined || failure.peer === this.#world.rank ? undefined : failure;',
    seed: 12532,
    among: ({ faults }) => faults.some(({ kind, after }) => kind === 'stop' && after === 'start'),
  },
];
