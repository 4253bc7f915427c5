import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Handshake, handshakeBytesMax, launcherNumber, type HandshakeOptions } from './auth.ts';
import { isShoalError, type ShoalError } from './errors.ts';
import { seededRandom } from './random.ts';
import { claimOf, type LinkClaim } from './secure/link.ts';
import type { LinkKeys } from './secure/records.ts';

const secret = new TextEncoder().encode('the secret of this job');

function end(role: 'dialer' | 'acceptor', changes: Partial<HandshakeOptions> = {}): Handshake {
  const rank = role === 'dialer' ? 3 : 5;
  return new Handshake({ role, secret, purpose: 'test', world: 'w', rank, random: seededRandom(rank), link: claimOf('local'), ...changes });
}

/** A claim that does not depend on the machine. */
function hereOf(host: number, demands = true): LinkClaim {
  return { demands, hasAes: true, host: new Uint8Array(16).fill(host) };
}

interface Verdict {
  peerRank?: number;
  error?: ShoalError;
  rest?: Uint8Array;
  keys?: LinkKeys;
}

/** Both ends against each other, every byte stream cut into pieces of `pieceBytes`. */
function converse(dialer: Handshake, acceptor: Handshake, pieceBytes = 1000): { dialer: Verdict; acceptor: Verdict } {
  const ends = [dialer, acceptor];
  const verdicts: Verdict[] = [{}, {}];
  const inbox: Uint8Array[][] = [[], []];
  const post = (to: number, bytes: Uint8Array | undefined): void => {
    for (let at = 0; bytes !== undefined && at < bytes.length; at += pieceBytes) inbox[to].push(bytes.subarray(at, at + pieceBytes));
  };
  post(1, dialer.start());
  expect(acceptor.start()).toBeUndefined();
  while (inbox[0].length + inbox[1].length > 0) {
    const to = inbox[0].length > 0 ? 0 : 1;
    const bytes = inbox[to].shift()!;
    const verdict = verdicts[to];
    if (verdict.error !== undefined || verdict.peerRank !== undefined) continue;
    try {
      const step = ends[to].push(bytes);
      post(1 - to, step.send);
      if (step.done !== undefined) Object.assign(verdict, step.done);
    } catch (thrown) {
      if (!isShoalError(thrown)) throw thrown;
      verdict.error = thrown;
      post(1 - to, ends[to].refusal);
    }
  }
  return { dialer: verdicts[0], acceptor: verdicts[1] };
}

describe('handshake', () => {
  it('authenticates both ends and tells each the rank of the other', () => {
    for (const pieceBytes of [1, 7, 8, 99, 1000]) {
      const { dialer, acceptor } = converse(end('dialer', { expectedPeer: 5 }), end('acceptor', { expectedPeer: 3 }), pieceBytes);
      expect(dialer.peerRank).toBe(5);
      expect(acceptor.peerRank).toBe(3);
    }
  });

  it('names launchers as such, and their numbers nowhere', () => {
    const { dialer, acceptor } = converse(
      end('dialer', { rank: launcherNumber + 1, secret: Uint8Array.of(9) }),
      end('acceptor', { rank: launcherNumber }),
    );
    for (const { error } of [dialer, acceptor]) {
      expect(error?.code).toBe('auth');
      expect(error?.message).toContain('the launcher of node 1');
      expect(`${error?.message} ${error?.rank} ${error?.peer}`).not.toMatch(/10737418/);
    }
  });

  it('keeps the bytes of its frames', () => {
    const seeded = (role: 'dialer' | 'acceptor', rank: number): Handshake =>
      new Handshake({
        role,
        secret: Buffer.from('secret'),
        purpose: 'store',
        world: 'w',
        worldSize: 3,
        rank,
        random: seededRandom(rank),
        link: hereOf(9),
      });
    const [dialer, acceptor] = [seeded('dialer', 1), seeded('acceptor', 2)];
    const hello = dialer.start()!;
    const answer = acceptor.push(hello).send!;
    const proof = dialer.push(answer).send!;
    expect([hello, answer, proof, acceptor.push(proof).send!].map((frame) => Buffer.from(frame).toString('hex'))).toEqual([
      '53484f414c02010073746f7265000000000000000000000050e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc32601000000ffffffff030000009e272f05c2005ae1e302ce680df6392edf61a1e7079951a1f721b1aee05a15980309090909090909090909090909090909000000',
      '53484f414c02010173746f7265000000000000000000000050e721e49c013f00c62cf59f2163542a9d8df02464efeb615d31051b0fddc32602000000ffffffff030000003160159003909c4759b0e4363a9bde0066acb905be22082f1187e11bff1d6f520309090909090909090909090909090909000000',
      '53484f414c0202003595c44f019ee6d942142af5ac4d7458f99b442d55771d2219aed8ff27f67f6200000000000000000000000000000000',
      '53484f414c020201166943125df7e7f5d5e1f3217d70b989aedc34cf2caec56f66cbbb39c82b056300000000000000000000000000000000',
    ]);
    expect(Buffer.from(seeded('acceptor', 0).refuse('full é')).toString('hex')).toBe('53484f414c02030266756c6c20e9'.padEnd(2 * 136, '0'));
  });

  it('gives back the bytes that follow the last frame, and asks for no more than its frames', () => {
    const dialer = end('dialer');
    const acceptor = end('acceptor');
    expect(acceptor.bytesWanted).toBe(120);
    const hello = acceptor.push(dialer.start()!);
    const proof = dialer.push(hello.send!);
    expect(acceptor.bytesWanted).toBe(56);
    const step = acceptor.push(Buffer.concat([proof.send!, Buffer.from('tail')]));
    expect(Buffer.from(step.done!.rest).toString()).toBe('tail');
    expect(dialer.push(step.send!).done).toMatchObject({ peerRank: 5 });
    expect(dialer.start()!.length + proof.send!.length).toBe(handshakeBytesMax);
  });

  it('a wrong secret is an auth error on both ends', () => {
    const { dialer, acceptor } = converse(end('dialer', { secret: Buffer.from('guess') }), end('acceptor'));
    expect(acceptor.error).toMatchObject({ code: 'auth', peer: 3 });
    expect(dialer.error).toMatchObject({ code: 'auth' });
  });

  it('an acceptor without the secret cannot pass for a member', () => {
    const dialer = end('dialer');
    const impostor = end('acceptor', { secret: Buffer.from('guess') });
    dialer.push(impostor.push(dialer.start()!).send!);
    const forged = Buffer.alloc(56);
    forged.set(dialer.start()!.subarray(0, 6));
    forged[6] = 2;
    forged[7] = 1;
    expect(() => dialer.push(forged)).toThrow(expect.objectContaining({ code: 'auth' }));
  });

  it('a proof recorded from one conversation is refused in another', () => {
    const dialer = end('dialer');
    const hello = dialer.start()!;
    const proof = dialer.push(end('acceptor').push(hello).send!).send!;
    const later = end('acceptor', { random: seededRandom(99) });
    later.push(hello);
    expect(() => later.push(proof)).toThrow(expect.objectContaining({ code: 'auth' }));
  });

  it('a reflected handshake is refused', () => {
    const dialer = end('dialer');
    expect(() => dialer.push(dialer.start()!)).toThrow(expect.objectContaining({ code: 'protocol' }));
  });

  it.each([
    ['another world', { world: 'other' }, /another world/],
    ['another purpose', { purpose: 'store' }, /wrong port/],
    ['another rank expected', { expectedPeer: 9 }, /expected rank 9 but reached rank 5/],
    ['another world size', { worldSize: 8 }, /world size is 4 at rank 5 but 8 at rank 3/],
  ] as const)('%s is a config error on both ends that says what differs', (_name, changes, text) => {
    const { dialer, acceptor } = converse(end('dialer', changes), end('acceptor', { worldSize: 4 }));
    expect(acceptor.error).toMatchObject({ code: 'config', message: expect.stringMatching(text) });
    expect(dialer.error).toMatchObject({ code: 'config', message: expect.stringMatching(/refused rank 3/) });
  });

  it('an acceptor that waits for another rank refuses this one', () => {
    const { dialer, acceptor } = converse(end('dialer'), end('acceptor', { expectedPeer: 7 }));
    expect(acceptor.error).toMatchObject({ code: 'config', message: expect.stringMatching(/expected rank 7 but reached rank 3/) });
    expect(dialer.error).toMatchObject({ code: 'config' });
  });

  it('another version is a config error', () => {
    const hello = Buffer.from(end('dialer').start()!);
    hello[5] = 1;
    const acceptor = end('acceptor');
    expect(() => acceptor.push(hello)).toThrow(
      expect.objectContaining({ code: 'config', message: expect.stringMatching(/version 2 here, 1/) }),
    );
    expect(acceptor.refusal).toHaveLength(136);
  });

  it('a stranger is refused at its first wrong byte and gets no answer', () => {
    const acceptor = end('acceptor');
    expect(() => acceptor.push(Buffer.from('GET / HTTP/1.1'))).toThrow(expect.objectContaining({ code: 'protocol' }));
    expect(acceptor.refusal).toBeUndefined();
  });

  it("a refusal for the caller's reasons reaches the dialer", () => {
    const dialer = end('dialer');
    expect(() => dialer.push(end('acceptor').refuse('too many connections'))).toThrow(
      expect.objectContaining({ code: 'aborted', message: expect.stringMatching(/too many connections/) }),
    );
  });

  it('any change to any byte of a conversation is refused', () => {
    fc.assert(
      fc.property(fc.constantFrom(0, 1, 2, 3), fc.nat(99), fc.integer({ min: 1, max: 255 }), (frame, at, flip) => {
        const dialer = end('dialer');
        const acceptor = end('acceptor');
        let frames = 0;
        const tamper = (bytes: Uint8Array): Uint8Array => {
          if (frames++ !== frame) return bytes;
          const changed = Uint8Array.from(bytes);
          changed[at % changed.length] ^= flip;
          return changed;
        };
        const attempt = (): boolean => {
          const hello = acceptor.push(tamper(dialer.start()!)).send;
          const proof = hello && dialer.push(tamper(hello)).send;
          const answer = proof && acceptor.push(tamper(proof)).send;
          return answer !== undefined && dialer.push(tamper(answer)).done !== undefined;
        };
        let finished = false;
        try {
          finished = attempt();
        } catch (thrown) {
          expect(isShoalError(thrown)).toBe(true);
        }
        expect(finished).toBe(false);
      }),
      { numRuns: 400 },
    );
  });

  it('random bytes never do anything but end in a ShoalError', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 400 }), fc.boolean(), fc.constantFrom('dialer', 'acceptor'), (bytes, prefixed, role) => {
        const handshake = end(role);
        const input = prefixed ? Buffer.concat([Buffer.from('SHOAL\x02', 'latin1'), bytes]) : bytes;
        try {
          expect(handshake.push(input).done).toBeUndefined();
        } catch (thrown) {
          expect(isShoalError(thrown)).toBe(true);
        }
      }),
      { numRuns: 500 },
    );
  });
});

describe('encryption', () => {
  const apart = (role: 'dialer' | 'acceptor', changes: Partial<HandshakeOptions> = {}): Handshake =>
    end(role, { link: hereOf(role === 'dialer' ? 1 : 2), ...changes });

  it('is agreed on between hosts, with keys that only the two ends have', () => {
    const { dialer, acceptor } = converse(apart('dialer'), apart('acceptor'), 7);
    expect(dialer.keys).toMatchObject({ aead: 'aes-256-gcm' });
    expect(dialer.keys!.send).toEqual(acceptor.keys!.receive);
    expect(dialer.keys!.receive).toEqual(acceptor.keys!.send);
    expect(dialer.keys!.send).not.toEqual(dialer.keys!.receive);
    const again = converse(apart('dialer', { random: seededRandom(77) }), apart('acceptor'));
    expect(again.dialer.keys!.send).not.toEqual(dialer.keys!.send);
  });

  it('takes the cipher that both processors are fast at', () => {
    const without = { ...hereOf(1), hasAes: false };
    expect(converse(apart('dialer', { link: without }), apart('acceptor')).acceptor.keys).toMatchObject({ aead: 'chacha20-poly1305' });
  });

  it.each([
    ['within a host', hereOf(1), hereOf(1)],
    ['within a host, whatever the settings are', hereOf(1), hereOf(1, false)],
    ['if both ends do without', hereOf(1, false), hereOf(2, false)],
  ])('is not used %s', (_name, dialling, accepting) => {
    const { dialer, acceptor } = converse(end('dialer', { link: dialling }), end('acceptor', { link: accepting }));
    expect([dialer.peerRank, acceptor.peerRank]).toEqual([5, 3]);
    expect([dialer.keys, acceptor.keys]).toEqual([undefined, undefined]);
  });

  it('a connection that may leave the host counts as one between hosts', () => {
    const anywhere = hereOf(0);
    const { dialer } = converse(end('dialer', { link: anywhere }), end('acceptor', { link: anywhere }));
    expect(dialer.keys).toBeDefined();
  });

  it.each(['dialer', 'acceptor'] as const)('an end that demands it refuses one that does not; the %s does without', (role) => {
    const without = { link: hereOf(9, false) };
    const { dialer, acceptor } = converse(
      apart('dialer', role === 'dialer' ? without : {}),
      apart('acceptor', role === 'acceptor' ? without : {}),
    );
    for (const { error } of [dialer, acceptor])
      expect(error).toMatchObject({
        code: 'config',
        message: expect.stringMatching(/demands encryption and rank \d has SHOAL_ENCRYPTION=off/),
      });
  });

  it('a purpose that cannot be encrypted is refused between hosts, with the setting that allows it', () => {
    const { dialer, acceptor } = converse(apart('dialer', { encryption: 'impossible' }), apart('acceptor', { encryption: 'impossible' }));
    for (const { error } of [dialer, acceptor])
      expect(error).toMatchObject({ code: 'unsupported', message: expect.stringMatching(/SHOAL_ENCRYPTION=off/) });
    const local = converse(end('dialer', { encryption: 'impossible' }), end('acceptor', { encryption: 'impossible' }));
    expect(local.dialer.peerRank).toBe(5);
  });

  it('another secret is an auth error', () => {
    const { dialer, acceptor } = converse(apart('dialer', { secret: Buffer.from('guess') }), apart('acceptor'));
    expect(acceptor.error).toMatchObject({ code: 'auth', peer: 3 });
    expect(dialer.error).toMatchObject({ code: 'auth' });
  });

  it('a man in the middle who changes any bit of any frame keeps both ends from going on together, and downgrades nothing', () => {
    for (let frame = 0; frame < 4; frame++) {
      const bytes = frame < 2 ? 120 : 56;
      for (let at = 0; at < bytes; at++) {
        const [dialer, acceptor] = [apart('dialer'), apart('acceptor')];
        let frames = 0;
        const tamper = (passing: Uint8Array): Uint8Array => {
          if (frames++ !== frame) return passing;
          const changed = Uint8Array.from(passing);
          changed[at] ^= 1 << ((at + frame) % 8);
          return changed;
        };
        let finished = false;
        try {
          const hello = acceptor.push(tamper(dialer.start()!)).send;
          const proof = hello && dialer.push(tamper(hello)).send;
          const answer = proof && acceptor.push(tamper(proof)).send;
          finished = answer !== undefined && dialer.push(tamper(answer)).done !== undefined;
        } catch (thrown) {
          expect(isShoalError(thrown)).toBe(true);
        }
        expect(finished, `frame ${frame}, byte ${at}`).toBe(false);
      }
    }
  });
});
