import { describe, expect, it } from 'vitest';
import { VirtualClock } from './clock.ts';
import { createLogger, silentLogger, type Logger, type LogLevel } from './log.ts';

function capture(level: LogLevel): { lines: string[]; clock: VirtualClock; logger: Logger } {
  const lines: string[] = [];
  const clock = new VirtualClock();
  const logger = createLogger({ level, clock, speaker: 'rank 3', write: (line) => lines.push(line) });
  return { lines, clock, logger };
}

describe('createLogger', () => {
  it('prints one readable line per message', () => {
    const { lines, clock, logger } = capture('debug');
    clock.advance(((12 * 60 + 1) * 60 + 3) * 1000 + 123);
    logger.warn('rank 5 is late', { operation: 'all-reduce', sequence: 7 });
    logger.debug('connected');
    expect(lines).toEqual([
      '12:01:03.123 rank 3 warn  rank 5 is late operation=all-reduce sequence=7\n',
      '12:01:03.123 rank 3 debug connected\n',
    ]);
  });

  it('prints only the level asked for and above', () => {
    const { lines, logger } = capture('warn');
    logger.debug('no');
    logger.info('no');
    logger.warn('yes');
    logger.error('yes');
    expect(lines).toHaveLength(2);
  });

  it('says nothing when silent', () => {
    const { lines, logger } = capture('silent');
    logger.error('no');
    expect(lines).toEqual([]);
    expect(logger).toBe(silentLogger);
  });

  it('keeps a hostile message on its line', () => {
    const { lines, logger } = capture('info');
    logger.info('peer says "a\nb\x1b[2J"', { time: 'c\r\nd' });
    expect(lines).toEqual(['00:00:00.000 rank 3 info  peer says "a · b\\x1b[2J" time=c · d\n']);
  });
});
