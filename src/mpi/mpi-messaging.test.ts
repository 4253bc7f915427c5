/** mpi:// within one process: the conformance suite, strangers, endpoints. Between processes: test/group/mpirun.test.ts, test/messaging/messaging-processes.test.ts. */
import { describe, expect, it } from 'vitest';
import { UnhurriedClock } from '../base/testing/unhurried-clock.ts';
import { mpiUnavailable } from './mpi-endpoint.ts';
import { describeMessaging } from '../messaging/conformance.ts';
import { MessagingContext } from '../messaging/context.ts';
import { Dealer } from '../messaging/dealer.ts';
import { Msg } from '../messaging/msg.ts';
import { Router } from '../messaging/router.ts';

const secret = new TextEncoder().encode('secret of the job');
const clock = new UnhurriedClock();
const missing = mpiUnavailable();

describe.skipIf(missing !== undefined)(`mpi${missing === undefined ? '' : ` (skipped: ${missing})`}`, () => {
  describeMessaging('mpi', () => {
    let made = 0;
    return {
      context: (changes) => new MessagingContext({ world: 'mpi-test', secret, ...changes }),
      url: () => `mpi://*/r${made++}`,
      rebinds: true,
    };
  });

  describe('mpi endpoints', () => {
    it('are told as ranks, and checked', async () => {
      await using context = new MessagingContext({ world: 'w', secret, clock });
      await using router = new Router(context);
      expect(await router.bind('mpi://*')).toBe('mpi://0/router');
      await using dealer = new Dealer(context, { address: 1n });
      for (const wrong of ['mpi://', 'mpi://x', 'mpi://0/a b', 'mpi://-1', 'mpi://9']) {
        await expect(dealer.connect(wrong)).rejects.toMatchObject({ code: 'usage' });
      }
      await expect(router.bind('mpi://1')).rejects.toMatchObject({ code: 'usage', message: expect.stringMatching(/rank 0/) });
    });

    it('of another world are not reached, and with another secret told auth', async () => {
      await using inside = new MessagingContext({ world: 'w', secret, clock });
      await using elsewhere = new MessagingContext({ world: 'v', secret, clock });
      await using outside = new MessagingContext({ world: 'w', secret: Buffer.from('guess'), clock });
      await using router = new Router(inside);
      const url = await router.bind('mpi://*/strangers');
      await using other = new Dealer(elsewhere, { address: 1n });
      await expect(other.connect(url, { timeoutMs: 150 })).rejects.toMatchObject({ code: 'timeout' });
      await using stranger = new Dealer(outside, { address: 2n });
      stranger.send(new Msg(2n, 0n));
      await expect(stranger.connect(url)).rejects.toMatchObject({ code: 'auth', message: expect.stringMatching(/secret/) });
      await using member = new Dealer(inside, { address: 3n });
      await member.connect(url);
      member.send(new Msg(3n, 0n));
      expect((await router.receive()).source).toBe(3n);
      expect(router.ready).toBe(false);
    });
  });
});
