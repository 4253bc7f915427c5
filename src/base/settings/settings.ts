/** Every setting of the project, once: name, type, default, range, meaning. The environment is read here and nowhere else; all
 *  other code receives the resulting `Settings`, which is plain data and may be cloned to another thread. `docs/settings.md` is
 *  generated from this table. The effects of settings are not known here. */
import { nearestName } from './nearest-name.ts';
import {
  bytes,
  choice,
  flag,
  formatSetting,
  integer,
  itemsOf,
  list,
  milliseconds,
  parseFlag,
  resolveSetting,
  section,
  text,
  type SettingDefinition,
  type SettingSource,
  type Unplaced,
} from './setting.ts';

/** Environment variables, as in `process.env`. */
export type Environment = Readonly<Record<string, string | undefined>>;

/** Bytes of an element of the widest dtype: slices have whole elements. */
const elementBytesMax = 8;
const MiB = 2 ** 20;

/** NCCL writes one sign before a whole list: `^docker,lo` excludes both, `=eth0,eth1` means exactly these. */
function fromNcclInterfaces(text: string): string {
  const sign = text[0] === '^' ? '^' : '';
  return itemsOf(text.replace(/^[\^=]/, ''))
    .map((item) => sign + item)
    .join(',');
}

/** Bytes for a number of float32 parameters, in which ByteScheduler counts. Text that is not a number stays unchanged, to be refused. */
function fromParameters(text: string): string {
  const parameters = Number(text);
  return text.trim() !== '' && Number.isFinite(parameters) ? String(Math.round(parameters * 4)) : text;
}

/** Level for ByteScheduler's debug switch; text that is not a switch stays unchanged, to be refused. */
function fromDebugSwitch(text: string): string {
  const isOn = parseFlag(text.trim());
  return isOn === undefined ? text : isOn ? 'debug' : 'warn';
}

/** The registry. A new setting is one entry here; the documentation follows. */
export const settingDefinitions = {
  ...section('collectives', {
    algorithms: text(
      'SHOAL_ALGORITHMS',
      'Overrides the choice of algorithm per collective and size range: `all-reduce:0-4k=direct,4k-inf=ring;broadcast:tree`. Empty: automatic.',
    ),
    tuningFile: text(
      'SHOAL_TUNING_FILE',
      'File of `shoal tune` with the fastest algorithms for shapes of a world; the same on all ranks. Empty: none.',
    ),
    calibration: choice(
      'SHOAL_CALIBRATION',
      ['measure', 'assume'],
      'measure',
      'Rates for the choice of algorithms between hosts. `measure`: times links at the start, for some milliseconds; `assume`: takes those of a 10 Gbit/s network.',
    ),
    order: choice(
      'SHOAL_ORDER',
      ['canonical', 'relaxed'],
      'canonical',
      'Order of floating-point sums. `canonical`: one fixed tree over ranks, equal bits with every algorithm; `relaxed`: also algorithms with another order.',
    ),
    contract: choice(
      'SHOAL_CONTRACT',
      ['standard', 'strict'],
      'standard',
      'How ranks compare their calls before a result is returned. `strict` also compares the source lines of the calls.',
    ),
    timeoutMs: milliseconds('SHOAL_TIMEOUT_MS', 300_000, 'Ends an operation that not every rank has joined.'),
    slowMs: milliseconds('SHOAL_SLOW_MS', 2_000, 'A warning names the ranks that are late by this much.'),
    stagingBytes: bytes(
      'SHOAL_STAGING_BYTES',
      50 * MiB,
      'Staging memory per group and rank: as many operations and slices between hosts are in flight as it holds, at least one.',
      { least: 4096, multipleOf: elementBytesMax, aliases: [{ name: 'FAIRRING_TOTAL_MEMORY' }] },
    ),
    sliceBytes: bytes(
      'SHOAL_SLICE_BYTES',
      0,
      '`fairring` cuts tensors into slices of this size and has as many in flight as the staging holds. 0: slices of up to 25 MiB, in a size and number that keep the links busy.',
      { least: 4096, multipleOf: elementBytesMax, orZero: true, aliases: [{ name: 'FAIRRING_SLICE_SIZE' }] },
    ),
    groupHosts: choice(
      'SHOAL_GROUP_HOSTS',
      ['auto', 'all', '2', '4', '8', '16', '32', '64'],
      'auto',
      'Number of hosts in a group: `fairring` reduces within groups first, then owners of groups exchange. `all`: one group; `auto`: several groups if many hosts would exchange small messages.',
    ),
    syncBytesMax: bytes(
      'SHOAL_SYNC_BYTES',
      4 * MiB,
      'Collectives up to this size run on the calling thread when all ranks share memory; larger ones in the comm thread, except all-reduces of private arrays, or of tensors when the script waits at once. 0: all in the comm thread.',
    ),
    inFlightMax: integer('SHOAL_IN_FLIGHT', 16, 'Operations of one group that run at the same time; later ones queue.', {
      least: 1,
      most: 62,
    }),
  }),
  ...section('network', {
    fabrics: list(
      'SHOAL_FABRICS',
      'Data planes that may be used, best first: `shm,tcp`. Empty: automatic. For parameter servers see `SHOAL_KV_CARRIER`.',
    ),
    interfaces: list(
      'SHOAL_INTERFACES',
      'Network interfaces to use: names and CIDRs (`eth0,10.0.0.0/8`), `^` excludes (`^docker0`). Empty: all that peers can reach.',
      {
        aliases: [
          { name: 'TP_SOCKET_IFNAME' },
          { name: 'GLOO_SOCKET_IFNAME' },
          { name: 'NCCL_SOCKET_IFNAME', translate: fromNcclInterfaces },
        ],
      },
    ),
    congestionControl: list(
      'SHOAL_TCP_CONGESTION',
      "Congestion control of TCP links, in order of preference (`dctcp,cubic`). Empty: the system's, or cubic (else reno) if that is bbr; bbr on links that lose packets.",
    ),
    libfabricProvider: text(
      'SHOAL_LIBFABRIC_PROVIDER',
      'Provider of libfabric that the fabric `libfabric` uses: `verbs`, `efa`, `tcp;ofi_rxm`, `shm`, or another one. Empty: the best one available.',
    ),
    libfabricDevice: text(
      'SHOAL_LIBFABRIC_DEVICE',
      "Device of that provider, as `shoal info` shows it: `mlx5_0`, `eth0`. Empty: the provider's first.",
      { aliases: [{ name: 'RDMA_DEVICE' }] },
    ),
    libfabricQueueDepth: integer(
      'SHOAL_LIBFABRIC_QUEUE_DEPTH',
      128,
      'Operations in flight on one libfabric connection, and messages that it accepts before delivery.',
      { least: 16, most: 4096, aliases: [{ name: 'RDMA_QUEUE_DEPTH' }] },
    ),
    libfabricTrafficClass: integer(
      'SHOAL_LIBFABRIC_TRAFFIC_CLASS',
      0,
      'Service byte of the IP packets of libfabric connections, if the provider supports it.',
      { most: 255, aliases: [{ name: 'RDMA_TRAFFIC_CLASS' }] },
    ),
    hostId: text(
      'SHOAL_HOST_ID',
      'Overrides the identity of this host, so that one machine can simulate several in tests. Processes with one identity still share only memory that they can map. Empty: probed.',
    ),
    connectTimeoutMs: milliseconds('SHOAL_CONNECT_TIMEOUT_MS', 30_000, 'Ends an attempt to reach the store or a peer.'),
    secret: text('SHOAL_SECRET', 'Secret of the job; every connection proves that it knows it. `shoal run` makes one per job.', {
      sensitive: true,
    }),
    encryption: choice(
      'SHOAL_ENCRYPTION',
      ['on', 'off'],
      'on',
      'Encryption of connections between hosts; within a host nothing is encrypted. The same on all processes of a job: an end that demands it refuses one that does not.',
    ),
    grows: flag(
      'SHOAL_GROWS',
      false,
      'The world may grow while it has one rank: that rank can be reached. `shoal run --nnodes 1:4` says so.',
    ),
    join: flag('SHOAL_JOIN', false, 'The process joins a world that has begun, and waits until its ranks call `grow`. It needs no `RANK`.'),
    insecure: flag('SHOAL_INSECURE', false, 'Allows a job over several hosts without a secret.'),
  }),
  ...section('memory', {
    sharedMemoryMax: bytes('SHOAL_SHARED_MEMORY_MAX', 0, 'Budget of shared memory per process. 0: none.'),
    native: flag(
      'SHOAL_NATIVE',
      true,
      'Use the native addon when it is built; off: JavaScript kernels and no shared memory between processes.',
    ),
  }),
  ...section('training', {
    bucketBytes: bytes('SHOAL_BUCKET_BYTES', 25 * MiB, 'Size of a gradient bucket of data-parallel training.', { least: 1 }),
    firstBucketBytes: bytes(
      'SHOAL_FIRST_BUCKET_BYTES',
      MiB,
      'Size of the bucket that is ready first: small, so that communication starts early.',
      { least: 1 },
    ),
  }),
  ...section('scheduling', {
    scheduling: flag(
      'SHOAL_SCHEDULING',
      false,
      'All-reduces of the group that `initProcessGroup` returns are scheduled: in parts, by priority, within a credit.',
      { aliases: [{ name: 'USE_BYTESCHEDULER' }] },
    ),
    schedulePartitionBytes: bytes(
      'SHOAL_SCHEDULE_PARTITION_BYTES',
      4_000_000,
      'Scheduled tensors are cut into parts of at most this size; the same on all ranks. `BYTESCHEDULER_PARTITION` counts float32 parameters, of 4 bytes.',
      { least: 4096, aliases: [{ name: 'BYTESCHEDULER_PARTITION', translate: fromParameters }] },
    ),
    scheduleCreditBytes: bytes(
      'SHOAL_SCHEDULE_CREDIT_BYTES',
      16_000_000,
      'Bound on the bytes of scheduled all-reduces in flight; one larger part may be alone. `BYTESCHEDULER_CREDIT` counts float32 parameters, of 4 bytes.',
      { least: 1, aliases: [{ name: 'BYTESCHEDULER_CREDIT', translate: fromParameters }] },
    ),
    scheduleCreditTuning: flag(
      'SHOAL_SCHEDULE_CREDIT_TUNING',
      false,
      'Tunes the credit of scheduled groups and stores during training; the same on all ranks.',
      { aliases: [{ name: 'BYTESCHEDULER_CREDIT_TUNING' }] },
    ),
    schedulePartitionTuning: flag(
      'SHOAL_SCHEDULE_PARTITION_TUNING',
      false,
      'Tunes the partition of scheduled groups and stores during training; the same on all ranks.',
      { aliases: [{ name: 'BYTESCHEDULER_PARTITION_TUNING' }] },
    ),
    scheduleTuningDir: text(
      'SHOAL_SCHEDULE_TUNING_DIR',
      'Folder that keeps tuned points for the next run, a file for each model, world and network. Empty: `shoal/schedule` in the cache folder of the user; `-`: none.',
    ),
    scheduleTimeline: text(
      'SHOAL_SCHEDULE_TIMELINE',
      "File for the timeline of rank 0's scheduler alone: a span for each task in the queue and in flight, and the credit. Empty: none. `SHOAL_TRACE` has the same for all ranks, beside all other events.",
      { aliases: [{ name: 'BYTESCHEDULER_TIMELINE' }] },
    ),
  }),
  ...section('parameter server', {
    carrier: choice(
      'SHOAL_KV_CARRIER',
      ['fabric', 'zeromq'],
      'fabric',
      'Transport between workers and servers. `fabric`: the first of `SHOAL_FABRICS` that reaches other hosts, else `tcp`; values go from memory to memory. `zeromq`: messages of ZeroMQ; needs the package zeromq, and is slower between hosts.',
    ),
    valueSliceBytes: bytes(
      'SHOAL_KV_SLICE_BYTES',
      4 * MiB,
      'Larger parameters are cut into slices of about this size, which lie on different servers.',
      { least: 4096, aliases: [{ name: 'BYTEPS_PARTITION_BYTES' }] },
    ),
    creditBytes: bytes(
      'SHOAL_KV_CREDIT_BYTES',
      16 * MiB,
      'Bytes in flight to one server that it has not received yet; waiting requests are sent by priority.',
      { least: 4096 },
    ),
    replayBytes: bytes(
      'SHOAL_KV_REPLAY_BYTES',
      1024 * MiB,
      'Pushes that a process keeps for servers that restart from a checkpoint; beyond it, servers are asked for a new one.',
    ),
    checkpointEveryMs: milliseconds('SHOAL_KV_CHECKPOINT_MS', 60_000, 'Time between checkpoints of a server whose state has changed.'),
    syncEvery: integer(
      'SHOAL_KV_SYNC_EVERY',
      1,
      'Updates of a parameter between two exchanges of a server group with the master of that parameter.',
      { least: 1 },
    ),
    syncMs: milliseconds(
      'SHOAL_KV_SYNC_MS',
      500,
      'Time after which a server group sends fewer updates than `SHOAL_KV_SYNC_EVERY`, and after which the master notifies groups with an older copy of a parameter: twice this after the last push all server groups have the sum of all updates.',
      { least: 1 },
    ),
    serverSilenceMs: milliseconds(
      'SHOAL_KV_SILENCE_MS',
      5_000,
      'A server, standby or worker process that is silent for this long, and does not answer when it is asked, counts as lost.',
      { least: 100 },
    ),
  }),
  ...section('execution', {
    commThread: choice(
      'SHOAL_COMM_THREAD',
      ['worker', 'inline'],
      'worker',
      'Where communication runs: its own thread, so that it overlaps with compute, or the calling thread.',
    ),
    spinMicroseconds: integer(
      'SHOAL_SPIN_US',
      100,
      'Time the comm thread polls shared memory before it sleeps, in microseconds; between hosts only while most waits are that short.',
      { most: 1_000_000 },
    ),
    syncSpinMicroseconds: integer(
      'SHOAL_SYNC_SPIN_US',
      1000,
      'Time a call on the calling thread polls for late ranks before the comm thread takes over, in microseconds; up to 8 times that where the network is slow, 20 times where the script does nothing but wait for its calls between hosts.',
      { most: 1_000_000 },
    ),
  }),
  ...section('diagnostics', {
    logLevel: choice(
      'SHOAL_LOG_LEVEL',
      ['debug', 'info', 'warn', 'error', 'silent'],
      'warn',
      'Least severe messages to print. `BYTESCHEDULER_DEBUG=1` is `debug`.',
      { aliases: [{ name: 'BYTESCHEDULER_DEBUG', translate: fromDebugSwitch }] },
    ),
    traceDir: text('SHOAL_TRACE', 'Folder for one Chrome trace per rank. Empty: tracing is off.'),
    traceEvents: integer('SHOAL_TRACE_EVENTS', 65_536, 'Events per thread that the trace keeps; older ones are dropped.', {
      least: 16,
      most: 1 << 24,
    }),
    traceIntervalMs: milliseconds(
      'SHOAL_TRACE_INTERVAL_MS',
      0,
      'Interval at which a rank rewrites its trace while it runs, for `--watch`; longer if a write takes long. 0: only at its end.',
      { least: 0 },
    ),
    flightRecorderSize: integer('SHOAL_FLIGHT_RECORDER', 256, 'Operations per rank that the flight recorder keeps. 0: off.', {
      most: 1 << 20,
    }),
    metrics: text(
      'SHOAL_METRICS',
      "Counts calls, and serves them to Prometheus at this port of the process, or address and port: `9464`, `0.0.0.0:9464`; each process of a host at the port plus its number there. `on`: counts alone, for the launcher's page. Empty: off.",
    ),
    otlpEndpoint: text(
      'SHOAL_OTLP',
      'Collector of OpenTelemetry that each rank tells of itself at its end, one span for each epoch of the world: `http://localhost:4318`. Empty: none.',
    ),
    flightRecorderDir: text('SHOAL_FLIGHT_RECORDER_DIR', 'Folder into which a failing rank writes its last operations. Empty: none.'),
  }),
};

type Definitions = typeof settingDefinitions;

/** Name of a property of `Settings`. */
export type SettingKey = keyof Definitions;

/** The settings in force; plain data. Times in milliseconds, sizes in bytes unless the name says otherwise. */
export type Settings = {
  readonly [K in SettingKey]: Definitions[K] extends Unplaced<infer V> ? V : never;
};

/** Keys in the order of the registry. */
export const settingKeys = Object.keys(settingDefinitions) as readonly SettingKey[];

/** The settings of an empty environment. */
export const defaultSettings: Settings = readSettings({});

export interface ResolvedSettings {
  readonly settings: Settings;
  readonly sources: Readonly<Record<SettingKey, SettingSource>>;
  /** One line per `SHOAL_*` variable that is not a setting, with the nearest name. */
  readonly warnings: readonly string[];
}

/** The settings that `environment` asks for. An empty variable counts as unset.
 *  @throws ShoalError `config` naming the variable, its value and what is accepted. */
export function readSettings(environment: Environment): Settings {
  return resolvedValues(environment).settings;
}

/** Like `readSettings`, with the origin of every value and warnings about variables that nobody reads. `reserved` are further
 *  `SHOAL_*` names that are known elsewhere. */
export function resolveSettings(environment: Environment, options: { reserved?: readonly string[] } = {}): ResolvedSettings {
  return { ...resolvedValues(environment), warnings: unknownNames(environment, options.reserved ?? []) };
}

/** Resolves without checking other variables: ranks have many, and finding the nearest name of each takes milliseconds. */
function resolvedValues(environment: Environment): Omit<ResolvedSettings, 'warnings'> {
  const resolved = settingKeys.map((key) => [key, resolveSetting(settingDefinitions[key], environment)] as const);
  return {
    settings: Object.fromEntries(resolved.map(([key, { value }]) => [key, value])) as unknown as Settings,
    sources: Object.fromEntries(resolved.map(([key, { source }]) => [key, source])) as Record<SettingKey, SettingSource>,
  };
}

/** A row of `shoal info`. */
export interface SettingRow {
  readonly key: SettingKey;
  readonly name: string;
  readonly value: string;
  /** The default, as text. */
  readonly fallback: string;
  readonly source: SettingSource;
}

/** Every setting in force as text; sensitive values only say whether they are set. */
export function describeSettings(resolved: ResolvedSettings): SettingRow[] {
  return settingKeys.map((key) => {
    const definition: SettingDefinition = settingDefinitions[key];
    const fallback = formatSetting(definition, definition.fallback);
    return {
      key,
      name: definition.name,
      value: formatSetting(definition, resolved.settings[key]),
      fallback,
      source: resolved.sources[key],
    };
  });
}

function unknownNames(environment: Environment, reserved: readonly string[]): string[] {
  const names: string[] = settingKeys.map((key) => settingDefinitions[key].name);
  const known = new Set([...names, ...reserved]);
  return Object.keys(environment)
    .filter((name) => name.startsWith('SHOAL_') && !known.has(name))
    .sort()
    .map((name) => {
      const nearest = nearestName(name, names);
      return `${name} is not a setting of Shoal and has no effect${nearest === undefined ? '' : `; did you mean ${nearest}?`}`;
    });
}
