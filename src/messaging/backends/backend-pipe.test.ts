/** The life of a pipe: packets before handlers, its one end, the limit of the last wait. */
import { expect, it } from 'vitest';
import { VirtualClock } from '../../base/clock.ts';
import { ShoalError } from '../../base/errors.ts';
import { BackendPipe } from './backend-pipe.ts';

class TestPipe extends BackendPipe {
  override isSending = false;
  readonly released: (number | undefined)[] = [];

  override send(): void {}

  override deliver(parts: Uint8Array[]): void {
    super.deliver(parts);
  }

  override flushed(): void {
    super.flushed();
  }

  protected override release(timeoutMs?: number): undefined {
    this.released.push(timeoutMs);
  }
}

function pipeOn(clock = new VirtualClock()) {
  const told: string[] = [];
  const pipe = new TestPipe({ description: 'a test', clock, onEnded: () => told.push('ended') });
  const handlers = {
    onParts: (parts: Uint8Array[]) => void told.push(`packet ${parts[0][0]}`),
    onClose: (error: ShoalError) => void told.push(error.code),
  };
  return { pipe, told, clock, hear: () => pipe.setHandlers(handlers) };
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

it('packets that come before the handlers wait for them', () => {
  const { pipe, told, hear } = pipeOn();
  pipe.deliver([Uint8Array.of(1)]);
  pipe.deliver([Uint8Array.of(2)]);
  hear();
  pipe.deliver([Uint8Array.of(3)]);
  expect(told).toEqual(['packet 1', 'packet 2', 'packet 3']);
});

it('a pipe is lost once, and tells it after the call; also when it was lost before there were handlers', async () => {
  const { pipe, told, hear } = pipeOn();
  hear();
  pipe.lose(new ShoalError('auth', 'first'));
  pipe.lose(new Error('second'));
  expect(told).toEqual(['ended']);
  await pipe.close(0);
  await turn();
  expect(told).toEqual(['ended', 'auth']);
  expect(pipe.released).toEqual([undefined]);
  const early = pipeOn();
  early.pipe.lose(new Error('gone'));
  early.hear();
  await turn();
  expect(early.told).toEqual(['ended', 'peer-lost']);
});

it('close waits for what is being sent, until the limit or another close', async () => {
  const flushed = pipeOn();
  flushed.pipe.isSending = true;
  const closing = flushed.pipe.close(1000);
  flushed.pipe.flushed();
  await closing;
  const late = pipeOn();
  late.pipe.isSending = true;
  const over = late.pipe.close(1000);
  expect(late.pipe.released).toEqual([]);
  late.clock.advance(1000);
  await over;
  expect(late.pipe.released).toEqual([1000]);
  const twice = pipeOn();
  twice.pipe.isSending = true;
  const first = twice.pipe.close(1000);
  await twice.pipe.close(0);
  await first;
  expect(twice.pipe.released).toEqual([0]);
  expect(twice.told).toEqual(['ended']);
});
