/** Every metric, once: name, type, help and labels, by the conventions of Prometheus: base units, totals that only rise. Plain data.
 *  `docs/operating.md` lists them from here. */

export interface MetricDefinition {
  readonly name: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  /** Beside `rank`, which all metrics of ranks have. */
  readonly labels: readonly string[];
}

function counter(name: string, help: string, ...labels: string[]): MetricDefinition {
  return { name: `${name}_total`, type: 'counter', help, labels };
}

function gauge(name: string, help: string, ...labels: string[]): MetricDefinition {
  return { name, type: 'gauge', help, labels };
}

const call = ['group', 'collective', 'path'];

export const metricDefinitions = {
  up: gauge(
    'shoal_rank_up',
    '1: the rank answers, or has left its groups and goes on; 0: it is stopped, does not answer, has not joined, or has ended.',
  ),
  calls: counter('shoal_calls', 'Collectives that the rank has called, and messages that have ended.', ...call),
  bytes: counter('shoal_call_bytes', 'Bytes of the elements in those calls.', ...call),
  seconds: {
    name: 'shoal_call_seconds',
    type: 'histogram',
    help: 'Time from a call until its end. Of calls that end at once, each 256th is timed, and counts for 256.',
    labels: call,
  },
  pending: gauge('shoal_pending_calls', 'Calls of the group that have not ended.', 'group'),
  oldest: gauge('shoal_wait_seconds', 'Time that the oldest call or message has waited for other ranks or data; 0: nothing waits.'),
  failures: gauge('shoal_failed_groups', 'Groups that have failed and are not destroyed.'),
  linkBytes: counter('shoal_link_sent_bytes', 'Bytes written to connections; not what ranks read of shared memory.', 'peer', 'fabric'),
  links: gauge('shoal_links', 'Connections to other ranks.'),
  linksLost: counter('shoal_links_lost', 'Connections to other ranks that broke.'),
  queued: gauge(
    'shoal_queued_tasks',
    'Parts of scheduled all-reduces in the queue, or requests that wait to be sent to the parameter server.',
    'group',
  ),
  credit: gauge('shoal_credit_bytes', 'Credit of the scheduled group, or of the way to the parameter server.', 'group'),
  creditUsed: gauge(
    'shoal_credit_used_bytes',
    'Bytes of scheduled all-reduces, or of requests to the parameter server, in flight.',
    'group',
  ),
  reconnects: counter('shoal_reconnects', 'Number of times that the connection to the parameter server was made again.', 'group'),
  registered: gauge('shoal_registered_bytes', 'Memory that other ranks may reach: tensors, staging, control blocks.'),
  worldSize: gauge('shoal_world_size', 'Ranks of the world, without those that the others have gone on without.'),
  epoch: gauge('shoal_world_epoch', 'Number of times that the ranks of the world have changed since the first were started.'),
  steps: counter('shoal_steps', 'Training steps: calls of group.step(), and steps of shoal/ddp.'),
  resident: gauge('shoal_resident_memory_bytes', 'Resident memory of the process.'),
  heap: gauge('shoal_heap_used_bytes', "Used part of the thread's JavaScript heap.", 'thread'),
  heapTotal: gauge('shoal_heap_total_bytes', "The thread's JavaScript heap.", 'thread'),
  active: counter('shoal_thread_active_seconds', "Time in which the thread's event loop ran code.", 'thread'),
  idle: counter('shoal_thread_idle_seconds', "Time in which the thread's event loop waited.", 'thread'),
  restarts: counter('shoal_restarts', 'Number of times that the launcher has started all ranks again.'),
  processRestarts: counter('shoal_process_restarts', 'Number of times that the launcher has started the process again, alone.', 'process'),
  serverUp: gauge(
    'shoal_server_up',
    '1: the parameter server answers; 0: it does not, as it is stopped, is being started, or has ended.',
    'process',
  ),
  serverRequests: counter('shoal_server_requests', 'Messages of workers and other servers that have come.', 'process', 'kind'),
  serverReceived: counter(
    'shoal_server_received_bytes',
    'Bytes of messages that have come, without what is written to shared memory.',
    'process',
  ),
  serverSent: counter('shoal_server_sent_bytes', 'Bytes of messages that were sent.', 'process'),
  serverWaiting: gauge(
    'shoal_server_waiting_requests',
    'Pushes whose round is not complete, barriers, and messages that wait for the standby or for a checkpoint.',
    'process',
  ),
  serverKeys: gauge('shoal_server_keys', 'Parts of parameters that the server keeps.', 'process'),
  serverClients: gauge('shoal_server_clients', 'Processes with workers that the server knows.', 'process'),
  serverStandby: gauge('shoal_server_standby', '1: the process stands by for a server.', 'process'),
  serverResident: gauge('shoal_server_resident_memory_bytes', 'Resident memory of the server, shared memory included.', 'process'),
  serverHeap: gauge('shoal_server_heap_used_bytes', "Used part of the server's JavaScript heap.", 'process'),
  launched: gauge('shoal_processes', 'Processes of this node that the launcher has started and that have not ended.'),
} as const satisfies Readonly<Record<string, MetricDefinition>>;

export type MetricKey = keyof typeof metricDefinitions;

/** A value of a metric. */
export interface Sample {
  readonly metric: MetricKey;
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  /** The series of a histogram that it is of. */
  readonly part?: '_bucket' | '_sum' | '_count';
}

/** One value. */
export function sample(metric: MetricKey, value: number, labels: Sample['labels'] = {}, part?: Sample['part']): Sample {
  return { metric, labels, value, ...(part && { part }) };
}
