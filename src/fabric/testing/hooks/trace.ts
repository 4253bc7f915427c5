/** Hook: operations and deliveries of a fabric on the timeline. Spans last from the call until the source may be reused,
 *  deliveries no time; the spans of one connection may overlap and share a lane. Costs nothing where the recorder is off. */
import type { TraceRecorder } from '../../../trace/recorder.ts';
import type { Connection, ConnectionHandlers, Fabric, RemoteSpan, Span } from '../../fabric.ts';
import { decorateFabric, ForwardingConnection } from './decorate.ts';

export function traceFabric(inner: Fabric, recorder: TraceRecorder): Fabric {
  if (!recorder.enabled) return inner;
  const name = (text: string, argument?: string): number =>
    recorder.name(`${inner.name} ${text}`, { category: 'fabric', ...(argument === undefined ? {} : { argument }) });
  const names: Names = {
    send: name('send', 'bytes'),
    write: name('write', 'bytes'),
    message: name('message', 'bytes'),
    immediate: name('immediate', 'immediate'),
    closed: name('closed'),
    lost: name('lost'),
  };
  return decorateFabric(inner, (connection) => new TracedConnection(connection, recorder, names));
}

interface Names {
  readonly send: number;
  readonly write: number;
  readonly message: number;
  readonly immediate: number;
  readonly closed: number;
  readonly lost: number;
}

class TracedConnection extends ForwardingConnection {
  readonly #recorder: TraceRecorder;
  readonly #names: Names;
  readonly #lane: number;

  constructor(inner: Connection, recorder: TraceRecorder, names: Names) {
    super(inner);
    this.#recorder = recorder;
    this.#names = names;
    this.#lane = recorder.lane(`${inner.description} rank ${inner.peer.rank}`);
  }

  override setHandlers(handlers: ConnectionHandlers): void {
    const recorder = this.#recorder;
    const names = this.#names;
    const lane = this.#lane;
    super.setHandlers({
      onMessage(message) {
        recorder.complete(names.message, recorder.now(), lane, message.length);
        handlers.onMessage(message);
      },
      onImmediate(immediate) {
        recorder.complete(names.immediate, recorder.now(), lane, immediate);
        handlers.onImmediate(immediate);
      },
      onClose(error) {
        recorder.complete(error === undefined ? names.closed : names.lost, recorder.now(), lane);
        handlers.onClose(error);
      },
    });
  }

  override send(message: Uint8Array): Promise<void> {
    return this.#spanned(this.#names.send, message.length, super.send(message));
  }

  override write(source: Span, target: RemoteSpan, immediate?: number): Promise<void> {
    return this.#spanned(this.#names.write, source.bytes, super.write(source, target, immediate));
  }

  #spanned(name: number, bytes: number, operation: Promise<void>): Promise<void> {
    const startMs = this.#recorder.now();
    void this.#record(name, startMs, bytes, operation);
    return operation;
  }

  async #record(name: number, startMs: number, bytes: number, operation: Promise<void>): Promise<void> {
    await Promise.allSettled([operation]);
    this.#recorder.complete(name, startMs, this.#lane, bytes);
  }
}
