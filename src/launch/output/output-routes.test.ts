import { describe, expect, it } from 'vitest';
import { parseRoutes } from './output-routes.ts';

const toConsole = { console: true, file: false };
const toFile = { console: false, file: true };
const toBoth = { console: true, file: true };

describe('parseRoutes', () => {
  it('shows everything when nothing is asked for', () => {
    expect(parseRoutes({}, 1)(0, 'stdout')).toEqual(toConsole);
  });

  it('copies to files when there is a directory', () => {
    expect(parseRoutes({ logDir: 'x' }, 2)(1, 'stderr')).toEqual(toBoth);
  });

  it('redirects and tees by stream and by rank', () => {
    const routes = parseRoutes({ logDir: 'x', redirects: '0:3,1:1', tee: '2:2' }, 3);
    expect([routes(0, 'stdout'), routes(0, 'stderr')]).toEqual([toFile, toFile]);
    expect([routes(1, 'stdout'), routes(1, 'stderr')]).toEqual([toFile, toConsole]);
    expect([routes(2, 'stdout'), routes(2, 'stderr')]).toEqual([toConsole, toBoth]);
    expect(parseRoutes({ logDir: 'x', redirects: '3' }, 1)(0, 'stdout')).toEqual(toFile);
  });

  it('filters the console by local rank, not the files', () => {
    const routes = parseRoutes({ logDir: 'x', localRanksFilter: '0,2' }, 3);
    expect([routes(0, 'stdout'), routes(1, 'stdout')]).toEqual([toBoth, toFile]);
  });

  it('refuses what it does not understand', () => {
    for (const options of [
      { tee: '3' },
      { redirects: '1' },
      { logDir: 'x', tee: '4' },
      { logDir: 'x', redirects: '0:5' },
      { localRanksFilter: 'a' },
      { localRanksFilter: '0,2' },
      { logDir: 'x', tee: '2:1' },
    ]) {
      expect(() => parseRoutes(options, 2)).toThrow(expect.objectContaining({ code: 'usage' }));
    }
  });
});
