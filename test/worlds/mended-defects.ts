/** Defects that were mended once, put back by small changes of the text: the worlds must find each. */
import { parameterCounts, type Action, type WorldPlan } from './world-plan.ts';

export interface MendedDefect {
  /** The effect of the defect. */
  readonly name: string;
  readonly file: string;
  /** Text that stands in the file exactly once. */
  readonly mended: string;
  readonly broken: string;
  /** Turns a world into one in which it may well show. Default: unchanged. */
  readonly shaped?: (plan: WorldPlan) => WorldPlan;
  /** Seed of the world that has shown it. */
  readonly seed?: number;
}

const withoutServers = { servers: 0, replicas: 1, nodes: 1, differs: undefined } as const;

/** Rounds with a server that has a standby, and nothing else that goes wrong. */
function withServers(plan: WorldPlan): WorldPlan {
  const ranks = Math.min(plan.ranks, 4);
  const actions = parameterCounts.flatMap((count) => [{ on: 'servers', call: 'push-pull', count } as const]);
  return { ...plan, nodes: 1, ranks, servers: 1, replicas: 2, differs: undefined, delayedOneIn: 8, delayMs: 50, actions };
}

/** The server ends when its standby is a new one, which may have just begun to copy the state. */
function losesBoth(plan: WorldPlan): WorldPlan {
  const at = 200 + (plan.seed % 700);
  const { actions, ...rest } = withServers(plan);
  return {
    ...rest,
    actions: [...actions, ...actions, ...actions],
    faults: [
      { kind: 'kill', who: 'standby 0', after: 'joined', at },
      { kind: 'kill', who: 'server 0', after: 'joined', at: at + 1 + ((7 * plan.seed) % 300) },
    ],
  };
}

/** A rank of at least four is killed, in a world in which messages take time. */
function killsOne(plan: WorldPlan): WorldPlan {
  return {
    ...plan,
    ...withoutServers,
    delayedOneIn: 4,
    delayMs: 50,
    ranks: Math.max(4, plan.ranks),
    faults: [{ kind: 'kill', who: `rank ${plan.seed % 4}`, after: 'joined', at: 1 + (plan.seed % 150) }],
  };
}

/** Two ranks have a group of their own beside the common one, and one of them is stopped for longer than others wait. */
function stopsOneOfTwo(plan: WorldPlan): WorldPlan {
  return {
    ...plan,
    ...withoutServers,
    delayedOneIn: 4,
    delayMs: 1,
    ranks: Math.max(4, plan.ranks),
    actions: plan.actions.flatMap<Action>((action) =>
      action.on === 'group' ? [{ on: 'subgroup', members: [0, 1], step: { ...action, root: 0 } }, action] : [action],
    ),
    faults: [{ kind: 'stop', who: 'rank 1', after: 'joined', at: 1 + (plan.seed % 60), forMs: 20_000 }],
  };
}

export const mendedDefects: readonly MendedDefect[] = [
  {
    name: 'a call that a failed group refuses ends before the others have heard why',
    file: 'src/group/comm/comm-core.ts',
    mended: 'if (engine?.failure === undefined) refuse();',
    broken: 'if (engine !== null) refuse();',
    shaped: killsOne,
    seed: 20,
  },
  {
    name: 'whoever ends because of another rank is taken for the reason by those who do not know it yet',
    file: 'src/group/comm/group-engine.ts',
    mended: 'await this.world.lastWords.heard();\n    this.#opened?.reject(error);',
    broken: 'this.#opened?.reject(error);',
    shaped: killsOne,
    seed: 4,
  },
  {
    name: 'the launcher blames the rank whose end it sees first',
    file: 'src/launch/node-agreement.ts',
    mended: 'if (rank === undefined) return last;',
    broken: 'if (rank !== -1) return last;',
    seed: 61,
  },
  {
    name: 'the launcher does not wait for what a rank that has ended has said last',
    file: 'src/launch/node-agreement.ts',
    mended: 'const onItsWayMs = 5000;',
    broken: 'const onItsWayMs = 0;',
    // A stopped launcher does not answer, and ranks do not wait for its answer for long.
    shaped: (plan) => {
      const { faults, ...rest } = killsOne(plan);
      const stop = { kind: 'stop', who: 'launcher 0', after: 'joined', at: 1 + (plan.seed % 150), forMs: 3000 } as const;
      return { ...rest, maxRestarts: 0, faults: [...faults, stop] };
    },
    seed: 3,
  },
  {
    name: 'ranks wait in vain for one that ended before it joined',
    file: 'src/launch/node-agreement.ts',
    mended: 'await reportEnded(ranksPart(this.#store, generation), rank, { ending, because });',
    broken: 'void [ending, because];',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      faults: [{ kind: 'exit', who: 'rank 1', after: 'start', at: 1 + (plan.seed % 100), code: 0 }],
    }),
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
    file: 'src/store/ended-ranks.ts',
    mended: "const consequence = error.code === 'timeout' || error.code === 'peer-lost';",
    broken: 'const consequence = false;',
    seed: 161,
  },
  {
    name: 'requests that a lost connection took with it are not sent again',
    file: 'src/ps/client/server-connection.ts',
    mended: 'entry.accepted = false;\n      this.#transmit(entry);',
    broken: 'entry.accepted = false;',
    shaped: (plan) => ({
      ...withServers(plan),
      faults: [{ kind: 'kill', who: 'server 0', after: 'joined', at: 1 + (plan.seed % 400) }],
    }),
    seed: 86,
  },
  {
    name: 'a server that has taken over without the state is taken for one that has it',
    file: 'src/ps/client/server-connection.ts',
    mended: 'const forgotten = before !== 0 && lineage !== before;',
    broken: 'const forgotten = before !== 0 && lineage < 0;',
    shaped: losesBoth,
    seed: 2,
  },
  {
    name: 'a server that takes over afresh forgets clients that have greeted it already',
    file: 'src/ps/server/server-node.ts',
    mended: 'for (const msg of [...hellos, ...this.#early.splice(0)])',
    broken: 'for (const msg of [...this.#early.splice(0)])',
    shaped: (plan) => ({ ...losesBoth(plan), ranks: 2, delayedOneIn: 2 }),
    seed: 261,
  },
  {
    name: 'a rank that leaves without its calls is waited for until the limit of time',
    file: 'src/group/comm/engine/members.ts',
    mended: 'if (calls !== undefined && calls <= sequence) return true;',
    broken: 'if (calls !== undefined && calls < -sequence) return true;',
    seed: 121,
  },
  {
    name: 'a rank that ends because of another one is taken for the reason in groups of which that one is no member',
    file: 'src/group/comm/world.ts',
    mended: "if (message.type === 'abort' || message.type === 'abort-elsewhere') link.failure = message.error;",
    broken: '',
    shaped: (plan) => ({
      ...stopsOneOfTwo(plan),
      ranks: 4,
      maxRestarts: 0,
      delayMs: 50,
      // The others call nothing until the first has given up the second.
      actions: plan.actions
        .flatMap<Action>((action) =>
          action.on === 'group'
            ? [
                { on: 'subgroup', members: [0, 1], step: { ...action, root: 0 } },
                { ...action, root: 0, late: [0, 0, 4000, 4000] },
              ]
            : [],
        )
        .slice(0, 2),
      faults: [{ kind: 'stop', who: 'rank 1', after: 'joined', at: 1 + ((7 * plan.seed) % 200), forMs: 20_000 }],
    }),
    seed: 4,
  },
  {
    name: 'a rank that left after its call is waited for',
    file: 'src/group/comm/diagnosis/inquiry.ts',
    mended: 'arrived: calls > sequence,',
    broken: 'arrived: false,',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ranks: 8,
      delayedOneIn: 4,
      delayMs: 1,
      actions: plan.actions.flatMap<Action>((action) => (action.on === 'group' ? [{ ...action, kind: 'broadcast', root: 0 }] : [])),
      faults: [{ kind: 'stop', who: 'rank 1', after: 'joined', at: 1 + ((7 * plan.seed) % 300), forMs: 20_000 }],
    }),
    seed: 12,
  },
  {
    name: 'a rank that waits for the data of one that is stopped waits for nobody',
    file: 'src/group/comm/group-calls.ts',
    mended: 'const ranks = late.length > 0 ? late :',
    broken: 'const ranks = late.length >= 0 ? late :',
    seed: 1329,
  },
  {
    name: 'workers begin while a server has no standby yet, and lose their state with it',
    file: 'src/ps/client/client-node.ts',
    mended: 'if (topology.replicas === 2) {',
    broken: 'if (Number(topology.replicas) === 3) {',
    shaped: (plan) => ({
      ...withServers(plan),
      delayedOneIn: 4,
      faults: [{ kind: 'kill', who: 'server 0', after: 'joined', at: 1 + (plan.seed % 100) }],
    }),
    seed: 16,
  },
  {
    name: 'a send that a lost connection breaks off ends before the others have heard why',
    file: 'src/group/comm/engine/point-to-point.ts',
    mended: "if (error.code === 'peer-lost') group.suspect(error);\n        else this.#end(transfer, error);",
    broken: 'this.#end(transfer, error);',
    shaped: (plan) => ({
      ...plan,
      ranks: Math.max(3, plan.ranks),
      ...withoutServers,
      actions: [8192, 1, 20_000, 8196].map((count) => ({ on: 'ring', count })),
      faults: [{ kind: 'kill', who: `rank ${plan.seed % plan.ranks}`, after: 'joined', at: 1 + (plan.seed % 90) }],
    }),
    seed: 32,
  },
  {
    name: 'a rank that ends because of a group that others are not in is the reason for them',
    file: 'src/group/comm/world.ts',
    mended: "this.lastWords.tell(others, { type: 'abort-elsewhere', error }, error.peer);",
    broken: 'void others;',
    shaped: (plan) => ({
      ...stopsOneOfTwo(plan),
      actions: plan.actions.flatMap<Action>((action) =>
        action.on === 'group'
          ? [
              { on: 'subgroup', members: [1, 2, 3], step: { ...action, root: 0 } },
              { on: 'ring', count: 64 },
            ]
          : [],
      ),
    }),
    seed: 60,
  },
  {
    name: 'a rank that waits in a transfer is taken for one that waits for nobody',
    file: 'src/group/comm/group-calls.ts',
    mended: 'wait: () => this.world.wait,',
    broken: 'wait: () => this.wait,',
    shaped: stopsOneOfTwo,
    seed: 7,
  },
  {
    name: 'a process that was stopped takes the store for silent',
    file: 'src/store/store-client.ts',
    mended: 'setServedTimer(clock, cancelGraceMs, ',
    broken: 'clock.setTimer(cancelGraceMs, ',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ranks: 2,
      delayedOneIn: 4,
      delayMs: 50,
      actions: Array.from({ length: 12 }, () => ({ on: 'store' })),
      faults: [{ kind: 'stop', who: 'rank 1', after: 'joined', at: 1 + ((37 * plan.seed) % 900), forMs: 3000 }],
    }),
    seed: 14,
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
    file: 'src/group/comm/group-calls.ts',
    mended: 'else this.networkPath.rest();',
    broken: '',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      path: 'network fast path',
      ranks: Math.max(4, plan.ranks),
      delayedOneIn: 0,
      actions: plan.actions.flatMap<Action>((action) => (action.on === 'group' ? [{ ...action, root: 0 }] : [])),
      faults: [
        { kind: 'stop', who: 'rank 1', after: 'joined', at: 1 + (plan.seed % 60), forMs: 3000 },
        { kind: 'kill', who: 'rank 0', after: 'joined', at: 1 + ((7 * plan.seed) % 90) },
      ],
    }),
    seed: 5,
  },
  {
    name: 'of ranks that blame each other the launcher names the one whose end it sees first',
    file: 'src/launch/node-agreement.ts',
    mended: 'followed.get(first ?? peer)',
    broken: 'followed.get(peer)',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ranks: 2,
      delayedOneIn: 8,
      delayMs: 50,
      actions: plan.actions.flatMap((action) => (action.on === 'group' ? [{ ...action, root: 0 }] : [])),
      faults: [{ kind: 'stop', who: 'rank 0', after: 'start', at: 16 + (plan.seed % 300), forMs: 20_000 }],
    }),
    seed: 82,
  },
  {
    name: 'a group that a rank was lost from before it opened fails before the others have heard why',
    file: 'src/group/comm/group-engine.ts',
    mended: 'void this.#endAllHeard(this.#failure);\n        return;',
    broken: 'reject(this.#failure);\n        return;',
    shaped: (plan) => ({
      ...killsOne(plan),
      path: plan.seed % 2 === 0 ? 'network fast path' : 'host',
      ranks: 6,
      delayedOneIn: 3,
      actions: plan.actions.flatMap<Action>((action) =>
        action.on === 'group' ? [{ on: 'subgroup', members: [0, 1, 2, 3, 4, 5], step: { ...action, root: 0 } }] : [],
      ),
      faults: [{ kind: 'kill', who: `rank ${plan.seed % 4}`, after: 'joined', at: 1 + (plan.seed % 40) }],
    }),
    seed: 94,
  },
  {
    name: 'a script hears of a failure before the store has its cause',
    file: 'src/group/comm/comm-core.ts',
    mended: 'this.#world?.lastWords.tellStore(told);',
    broken: 'void told;',
    shaped: (plan) => ({
      ...killsOne(plan),
      ranks: 3,
      actions: plan.actions.flatMap<Action>((action) => (action.on === 'group' ? [{ ...action, root: 0 }] : [])),
      faults: [{ kind: 'cut', who: 'rank 2', what: 'link', index: plan.seed % 2, after: 'joined', at: 1 + (plan.seed % 100) }],
    }),
    seed: 181,
  },
  {
    name: 'ranks hear of a lost launcher only by what its loss takes with it',
    file: 'src/launch/node-entry.ts',
    mended: 'if (first.node === node && first.final)',
    broken: 'if (first.node === -1)',
    shaped: (plan) => ({
      ...withServers(plan),
      nodes: 2,
      replicas: 1,
      maxRestarts: 0,
      faults: [{ kind: 'cut', who: 'launcher 0', after: 'start', at: 150 + ((7 * plan.seed) % 500), what: 'store', index: plan.seed % 8 }],
    }),
    seed: 6,
  },
  {
    name: 'launchers end the servers before the ranks have heard why',
    file: 'src/launch/node-agreement.ts',
    mended: 'await this.#store.compareSet(keyOf.first(generation), new Uint8Array(), encode(failure)));\n',
    broken:
      'await this.#store.compareSet(keyOf.first(generation), new Uint8Array(), encode(failure)));\n      await this.#store.set(keyOf.failed(generation), encode(first));\n',
    shaped: (plan) => ({
      ...withServers(plan),
      ...{ ranks: 2, servers: 2, replicas: 1, nodes: 2, path: 'network fast path', maxRestarts: 1, delayedOneIn: 0, delayMs: 0 },
      actions: [{ on: 'servers', call: 'push-pull', count: 7 }],
      faults: [
        { kind: 'kill', who: 'rank 0', after: 'joined', at: 2 },
        { kind: 'kill', who: 'rank 1', after: 'joined', at: 429 },
        { kind: 'stop', who: 'launcher 0', after: 'start', at: 1600 + ((7 * plan.seed) % 100), forMs: 20 },
      ],
    }),
    seed: 2,
  },
  {
    name: 'a group whose memory is gone hides why it has failed',
    file: 'src/group/caller/fast-path.ts',
    mended: "if (ShoalError.from(thrown).code === 'unsupported') return undefined;",
    broken: '',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ...{ ranks: 6, nodes: 2, path: 'network fast path', delayedOneIn: 200, delayMs: 2500 },
      faults: [{ kind: 'cut', who: 'launcher 1', after: 'start', at: 200 + ((7 * plan.seed) % 2000), what: 'store', index: 0 }],
    }),
    seed: 71,
  },
  {
    name: 'a worker that leaves after its job has failed waits for a server that is gone',
    file: 'src/ps/client/client-core.ts',
    mended: 'if (this.#jobFailure !== undefined) return done(this.#jobFailure);',
    broken: '',
    shaped: (plan) => ({
      ...withServers(plan),
      ...{ ranks: 2, replicas: 1, maxRestarts: 0, delayedOneIn: 0, delayMs: 0, actions: [] },
      faults: [{ kind: 'kill', who: 'rank 0', after: 'joined', at: 1 + (plan.seed % 10) }],
    }),
    seed: 1,
  },
  {
    name: 'results of a plain array that have come are lost when the comm thread takes over',
    file: 'src/group/caller/call-dispatch.ts',
    mended: 'withResults: fast.comesInPieces',
    broken: 'withResults: false',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ...{ ranks: 4, path: 'network fast path', delayedOneIn: 2, delayMs: 20 },
      actions: plan.actions.flatMap<Action>((action) =>
        action.on === 'group'
          ? [{ ...action, kind: 'all-gather', count: 8192, root: 0, plain: [true, true, true, true], late: [0, 5, 1, 3] }]
          : [],
      ),
      faults: [],
    }),
    seed: 1,
  },
  {
    name: 'a standby that takes over when all workers have left ends before one of them has heard that it may leave',
    file: 'src/ps/server/server-node.ts',
    mended: 'if (!this.#peers.has(client)) this.#peer(client).isConnected = false;',
    broken: 'void client;',
    shaped: (plan) => ({
      ...withServers(plan),
      ...{ ranks: 5, path: 'two hosts', delayedOneIn: 0, delayMs: 0, actions: [] },
      faults: [{ kind: 'kill', who: 'server 0', after: 'joined', at: 100 + plan.seed }],
    }),
    seed: 200,
  },
  {
    name: 'a rank that calls what others do not is not named when one that it waits for waits for it',
    file: 'src/group/comm/diagnosis/wait-chain.ts',
    mended: 'silent ?? circle ?? idle',
    broken: 'silent ?? idle ?? circle',
    shaped: (plan) => ({
      ...plan,
      ...withoutServers,
      ...{ ranks: 5, path: 'network', maxRestarts: 0, delayedOneIn: 0, delayMs: 0 },
      actions: [{ on: 'ring', count: 0 }, { on: 'store' }],
      differs: { rank: 3, at: 0, how: 'calls' },
      faults: [],
    }),
    seed: 1,
  },
];
