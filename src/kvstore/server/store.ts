/** The store as a process sees it that is a server: it can be waited for and closed, nothing else. Launchers of ours start
 *  servers without a script; this is for others, which start the same script everywhere. */
import { ShoalError } from '../../base/errors.ts';
import type { ServerNode } from './node.ts';
import type { KVStore, KVStoreType } from '../values/types.ts';

type Calls = Omit<
  KVStore,
  | 'type'
  | 'role'
  | 'rank'
  | 'numWorkers'
  | 'numServers'
  | 'workerGroup'
  | 'workersPerGroup'
  | 'served'
  | 'close'
  | typeof Symbol.asyncDispose
>;

export class ServerStore implements Calls {
  readonly role = 'server';
  readonly type: KVStoreType;
  readonly rank: number;
  readonly numWorkers: number;
  readonly numServers: number;
  readonly workerGroup = 0;
  readonly workersPerGroup: number;
  readonly #node: ServerNode;

  constructor(
    node: ServerNode,
    numbers: { type: KVStoreType; rank: number; numWorkers: number; numServers: number; workersPerGroup: number },
  ) {
    this.#node = node;
    this.type = numbers.type;
    this.rank = numbers.rank;
    this.numWorkers = numbers.numWorkers;
    this.numServers = numbers.numServers;
    this.workersPerGroup = numbers.workersPerGroup;
  }

  readonly tensor = refuse;
  readonly init = refuse;
  readonly push = refuse;
  readonly pull = refuse;
  readonly pushPull = refuse;
  readonly broadcast = refuse;
  readonly rowSparsePush = refuse;
  readonly rowSparsePull = refuse;
  readonly barrier = refuse;
  readonly setOptimizer = refuse;
  readonly setUpdater = refuse;
  readonly setGradientCompression = refuse;
  readonly saveState = refuse;
  readonly loadState = refuse;
  readonly info = refuse;
  readonly sendBlob = refuse;
  readonly receiveBlob = refuse;

  async served(): Promise<void> {
    await this.#node.ended;
  }

  close(): Promise<void> {
    return this.#node.stop();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

function refuse(): never {
  throw new ShoalError('usage', 'this process is a server (kv.role); only workers use parameters. Await kv.served() here');
}
