/** A parameter server over gRPC, as one would write it: waits for the gradients of all workers, adds them with the same kernels
 *  as the other contestants, answers with the sum.
 *
 *    grpc-server.ts <port> <workers> */
import { createKernels } from '../../src/memory/kernels/create-kernels.ts';
import { loadNative } from '../../src/memory/native.ts';
import { serve, type Unary } from '../grpc/calls.ts';

const [port, workersText] = process.argv.slice(2);
const workers = Number(workersText);
const kernels = createKernels({ native: loadNative({ enabled: true }) });

interface Slot {
  sum: Uint8Array;
  readonly waiting: Parameters<Unary>[1][];
}

const slots = new Map<string, Slot>();
const nothing = Buffer.alloc(0);

/** Answers all callers when the last has called. */
function together(onAll: () => void): Unary {
  const waiting: Slot['waiting'] = [];
  return (_, answer) => {
    waiting.push(answer);
    if (waiting.length < workers) return;
    for (const each of waiting.splice(0)) each(null, nothing);
    onAll();
  };
}

const served = await serve(`127.0.0.1:${port}`, {
  PushPull: (call, answer) => {
    const key = String(call.metadata.get('key')[0]);
    const { request } = call;
    let slot = slots.get(key);
    if (slot === undefined) {
      slot = { sum: new Uint8Array(request.length), waiting: [] };
      slots.set(key, slot);
    }
    if (slot.waiting.length === 0) slot.sum.set(request);
    else kernels.reduce('float32', 'sum', [slot.sum], [slot.sum, aligned(request)], [0, 1, -1]);
    slot.waiting.push(answer);
    if (slot.waiting.length < workers) return;
    const bytes = Buffer.from(slot.sum.buffer);
    for (const each of slot.waiting.splice(0)) each(null, bytes);
  },
  Barrier: together(() => undefined),
  Leave: together(() => void served.closeInOrder().then(() => process.exit(0))),
});

/** Bytes at an aligned address: gRPC delivers payloads at any address. */
function aligned(bytes: Uint8Array): Uint8Array {
  return bytes.byteOffset % 4 === 0 ? bytes : new Uint8Array(bytes);
}
