/** Rendezvous workers in processes of their own: the example, and a sender that is killed and started again. */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { fixtureScript } from '../support/fixtures.ts';
import { locksOfKilled } from '../support/locks-of-killed.ts';
import { libfabricUnavailable } from '../../src/fabric/providers/libfabric/libfabric-devices.ts';
import { shmUnavailable } from '../../src/fabric/providers/shm.ts';
import { systemEnvironment } from '../../src/rendezvous/environment.ts';
import { RendezvousWorker } from '../../src/rendezvous/index.ts';

const root = fileURLToPath(new URL('../..', import.meta.url));
const senderScript = fixtureScript('rendezvous-sender');
const children: ChildProcess[] = [];
const workers: RendezvousWorker[] = [];
afterEach(async () => {
  for (const child of children.splice(0)) child.kill('SIGKILL');
  for (const worker of workers.splice(0)) await worker.close();
});

function start(args: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const child = spawn(process.execPath, args, {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(child);
  return child;
}

describe('rendezvous between processes', () => {
  it('works as the example shows', async () => {
    const child = start(['--import', 'tsx', 'examples/send-tensors.ts']);
    let output = '';
    child.stdout.on('data', (text: Buffer) => (output += text.toString()));
    const [code] = (await once(child, 'close')) as [number | null];
    const lines = [
      'step 1 of 3: weights 1',
      'step 2 of 3: weights 0.5',
      'step 3 of 3: weights 0.25',
      'weights after 3 steps: 0.125, copied bytes: 0',
    ];
    expect({ code, lines: output.trim().split('\n') }).toEqual({ code: 0, lines });
  });

  const places: readonly (readonly [carrier: string, reason: string | undefined, provider?: string])[] = [
    ['tcp', undefined],
    ['shm', shmUnavailable()],
    ...['tcp;ofi_rxm', 'shm'].map(
      (provider) => ['libfabric', libfabricUnavailable({ provider }) ?? locksOfKilled(provider), provider] as const,
    ),
  ];
  for (const [carrier, reason, provider = ''] of places) {
    const env = { SHOAL_LIBFABRIC_PROVIDER: provider };
    it.skipIf(reason !== undefined)(
      `over ${carrier} ${provider}, a killed worker fails those who wait for it, receives and sends, and nobody else; the next process goes on${reason === undefined ? '' : ` (skipped: ${reason})`}`,
      async () => {
        const startSender = (rank: number, stepId: number) => start([senderScript, String(rank), carrier, String(stepId)], env);
        const senders = [0, 1].map((rank) => startSender(rank, 1));
        // A process that has ended is not waited for, however long a connection may take to be made again.
        const options = { rank: 9, secret: 'test', carriers: [carrier], reconnectMs: 600_000 };
        const worker = await RendezvousWorker.start(options, systemEnvironment(env));
        workers.push(worker);
        const connect = async ({ stdout }: ReturnType<typeof start>) =>
          worker.connect((await createInterface({ input: stdout })[Symbol.asyncIterator]().next()).value as string);
        const peers = await Promise.all(senders.map(connect));
        const step = worker.beginStep(1);
        const first = await step.recv(peers[0], 'here');
        const missing = peers.map((peer) => step.recv(peer, 'missing').catch((thrown: unknown) => thrown));
        const unasked = peers.map((peer) => step.send(peer, 'unasked', new Float32Array(1)).catch((thrown: unknown) => thrown));
        senders[0].kill('SIGKILL');
        expect(await missing[0]).toMatchObject({
          code: 'peer-lost',
          peer: 0,
          message: expect.stringMatching(
            /^'missing' from \/job:worker\/task:0\S+ did not come in step 1: \D+9 lost rank 0.*; its process has ended$/,
          ) as string,
        });
        expect(await unasked[0]).toMatchObject({
          code: 'peer-lost',
          peer: 0,
          message: expect.stringMatching(/^'unasked' for \/job:worker\/task:0\S+ was not taken in step 1: \D+9 lost rank 0/) as string,
        });
        const next = worker.beginStep(2);
        await expect(next.send(peers[0], 'later', 'text')).rejects.toMatchObject({ code: 'peer-lost', peer: 0 });
        expect(() => next.sendDead(peers[0], 'dead')).toThrow(expect.objectContaining({ code: 'peer-lost', peer: 0 }));
        const second = await step.recv(peers[1], 'here');
        expect([first!.data[0], first!.data.at(-1), second!.data[0], second!.data.at(-1)]).toEqual([0, 0, 1, 1]);
        await expect(step.recv(peers[0], 'later')).rejects.toMatchObject({ code: 'peer-lost' });
        step.end();
        expect(await missing[1]).toMatchObject({ code: 'aborted' });
        expect(await unasked[1]).toBeUndefined();
        const restarted = await connect(startSender(0, 3));
        const third = worker.beginStep(3);
        const again = third.recv(restarted, 'here');
        const answer = third.recv(restarted, 'answer');
        await third.send(restarted, 'question', Float32Array.of(5, 6));
        expect([...(await answer)!.data]).toEqual([5, 6]);
        expect((await again)!.data.length).toBe(1 << 20);
        await expect(third.recv(peers[0], 'here')).rejects.toMatchObject({ code: 'mismatch' });
      },
    );

    it.skipIf(reason !== undefined)(
      `over ${carrier} ${provider}, a killed worker that had connected itself fails those who wait for it${reason === undefined ? '' : ` (skipped: ${reason})`}`,
      async () => {
        const options = { rank: 9, secret: 'test', carriers: [carrier], reconnectMs: 600_000 };
        const worker = await RendezvousWorker.start(options, systemEnvironment(env));
        workers.push(worker);
        const sender = start([senderScript, '0', carrier, '1', worker.address], env);
        const peer = await worker.peer(0);
        const step = worker.beginStep(1);
        (await step.recv(peer, 'here'))?.release();
        const missing = step.recv(peer, 'missing').catch((thrown: unknown) => thrown);
        const unasked = step.send(peer, 'unasked', new Float32Array(1)).catch((thrown: unknown) => thrown);
        sender.kill('SIGKILL');
        for (const lost of await Promise.all([missing, unasked]))
          expect(lost).toMatchObject({ code: 'peer-lost', peer: 0, message: expect.stringMatching(/; its process has ended$/) as string });
      },
    );
  }
});
