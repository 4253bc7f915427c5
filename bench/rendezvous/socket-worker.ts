/** The least that a request for a tensor costs in Node.js: a byte asks over a plain socket, and the answer is read straight into an array
 *  that serves again. It knows neither keys nor sizes nor errors: tensors of a series, which is a case of the benchmark, are asked for in
 *  the order in which they are sent. */
import { once } from 'node:events';
import net from 'node:net';
import type { WorkerIdentity } from 'shoal/rendezvous';

interface Sent {
  readonly data: Uint8Array;
  readonly left: () => void;
}

interface Received {
  readonly data: Float32Array;
  release(): void;
}

/** The tensors of one series that nobody has asked for, and the requests that came before their tensor. */
class Series {
  readonly sent: Sent[] = [];
  readonly asking: net.Socket[] = [];

  match(): void {
    if (this.sent.length === 0 || this.asking.length === 0) return;
    const { data, left } = this.sent.shift()!;
    this.asking.shift()!.write(data, left);
  }
}

export class SocketWorker {
  readonly #server = net.createServer({ noDelay: true }, (socket) => this.#serve(socket));
  readonly #series = Array.from({ length: 256 }, () => new Series());
  /** Memory for the tensors of all series: Node.js asks where an answer goes before it is known which one that will be. */
  readonly #all: Float32Array;
  /** The part of `#all` that a tensor takes, by series. */
  readonly #places: readonly Float32Array[];
  #place: Float32Array = new Float32Array(0);
  #filled = 0;
  #arrived: ((value: Received) => void) | undefined;
  #socket: net.Socket | undefined;

  private constructor(elements: readonly number[]) {
    this.#all = new Float32Array(Math.max(1, ...elements));
    this.#places = elements.map((count) => this.#all.subarray(0, count));
  }

  /** @param host to listen on. @param elements of the tensors that this worker asks for, by series. */
  static async start(host: string, elements: readonly number[]): Promise<SocketWorker> {
    const worker = new SocketWorker(elements);
    worker.#server.listen(0, host);
    await once(worker.#server, 'listening');
    return worker;
  }

  get address(): string {
    const { address, port } = this.#server.address() as net.AddressInfo;
    return `${address}:${port}`;
  }

  async connect(address: string): Promise<WorkerIdentity> {
    const [host, port] = address.split(':');
    const all = new Uint8Array(this.#all.buffer);
    const buffer = (): Uint8Array => all.subarray(this.#filled);
    const onread = { buffer, callback: (count: number) => this.#onRead(count) };
    this.#socket = net.connect({ host, port: Number(port), noDelay: true, onread });
    await once(this.#socket, 'connect');
    return { rank: 0, device: address, incarnation: 0n };
  }

  /** @param stepId millions stand for the series. */
  beginStep(stepId: number) {
    const series = Math.floor(stepId / 1_000_000);
    return {
      recv: (): Promise<Received> =>
        new Promise((resolve) => {
          this.#arrived = resolve;
          this.#place = this.#places[series];
          this.#socket!.write(Uint8Array.of(series));
        }),
      send: (_: WorkerIdentity, __: string, { buffer, byteOffset, byteLength }: Float32Array): Promise<void> =>
        new Promise((left) => {
          this.#series[series].sent.push({ data: new Uint8Array(buffer, byteOffset, byteLength), left });
          this.#series[series].match();
        }),
      end() {},
    };
  }

  #serve(socket: net.Socket): void {
    socket.on('data', (asked: Uint8Array) => {
      for (const series of asked) {
        this.#series[series].asking.push(socket);
        this.#series[series].match();
      }
    });
  }

  #onRead(count: number): boolean {
    this.#filled += count;
    if (this.#filled < this.#place.byteLength) return true;
    this.#filled = 0;
    this.#arrived?.({ data: this.#place, release() {} });
    return true;
  }
}
