/** Counts what a server gets and sends, and tells whoever asks how it is. */
import { sample } from '../../metrics/definitions.ts';
import { answerQuestions } from '../../metrics/questions.ts';
import type { ServerReport } from '../../metrics/server-report.ts';
import type { Msg } from '../../messaging/msg.ts';
import type { ServerRecords } from '../job/server-records.ts';
import { KVMessage } from '../protocol/wire.ts';

/** The work and the state that a server has now. */
export interface ServerLoad {
  /** Pushes whose round is not complete, barriers, and messages that wait for the standby or for a checkpoint. */
  readonly waiting: number;
  /** Parts of parameters. */
  readonly keys: number;
  readonly clients: number;
}

const kinds = ['get', 'put', 'update', 'other'] as const;
type Kind = (typeof kinds)[number];
const nothing: ServerLoad = { waiting: 0, keys: 0, clients: 0 };

export class ServerTeller {
  readonly #requests: Record<Kind, number> = { get: 0, put: 0, update: 0, other: 0 };
  readonly #over = new AbortController();
  #receivedBytes = 0;
  #sentBytes = 0;

  received(msg: Msg): void {
    this.#requests[kindOf(msg.type)] += 1;
    this.#receivedBytes += msg.size;
  }

  sent(msg: Msg): void {
    this.#sentBytes += msg.size;
  }

  /** Answers from now on. @param who the name that the launcher has for the process, which may serve later as a standby, and the other way
   *  round. @param now `load` is undefined while it is being started. */
  answer(records: ServerRecords, who: string, now: () => { mode: 'primary' | 'standby'; load: ServerLoad | undefined }): void {
    void answerQuestions(records.store, who, () => this.#report(now()), this.#over.signal);
  }

  close(): void {
    this.#over.abort();
  }

  #report({ mode, load = nothing }: { mode: 'primary' | 'standby'; load: ServerLoad | undefined }): ServerReport {
    const role = mode === 'primary' ? 'server' : 'standby';
    const { rss, heapUsed } = process.memoryUsage();
    const { waiting, keys, clients } = load;
    return {
      pid: process.pid,
      role,
      requests: kinds.reduce((sum, kind) => sum + this.#requests[kind], 0),
      ...{ waiting, keys, clients },
      samples: [
        ...kinds.map((kind) => sample('serverRequests', this.#requests[kind], { kind })),
        sample('serverReceived', this.#receivedBytes),
        sample('serverSent', this.#sentBytes),
        sample('serverWaiting', waiting),
        sample('serverKeys', keys),
        sample('serverClients', clients),
        sample('serverStandby', role === 'standby' ? 1 : 0),
        sample('serverResident', rss),
        sample('serverHeap', heapUsed),
      ],
    };
  }
}

function kindOf(type: number): Kind {
  if (type === KVMessage.get) return 'get';
  if (type === KVMessage.put) return 'put';
  return type === KVMessage.update ? 'update' : 'other';
}
