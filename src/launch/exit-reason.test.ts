import { describe, expect, it } from 'vitest';
import { describeEnding, exitCodeOf, succeeded } from './exit-reason.ts';

describe('endings', () => {
  it('have the exit codes of a shell', () => {
    expect(exitCodeOf({ code: 0, signal: null })).toBe(0);
    expect(exitCodeOf({ code: 3, signal: null })).toBe(3);
    expect(exitCodeOf({ code: null, signal: 'SIGKILL' })).toBe(137);
    expect(exitCodeOf({ code: null, signal: 'SIGINT' })).toBe(130);
    expect(succeeded({ code: 0, signal: null })).toBe(true);
    expect(succeeded({ code: null, signal: 'SIGTERM' })).toBe(false);
  });

  it('are explained where there is something to explain', () => {
    expect(describeEnding({ code: 3, signal: null })).toBe('exited with code 3');
    expect(describeEnding({ code: 0, signal: null })).toBe('exited with code 0');
    expect(describeEnding({ code: 13, signal: null })).toMatch(/^exited with code 13 \(a top-level await/);
    expect(describeEnding({ code: null, signal: 'SIGBUS' })).toMatch(/^was killed by SIGBUS \(.*\/dev\/shm/);
    expect(describeEnding({ code: null, signal: 'SIGUSR1' })).toBe('was killed by SIGUSR1');
  });
});
