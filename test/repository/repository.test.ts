/** The repository as a whole: settings are known, the lock file is neutral, commands exist. */
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { environmentNames, isTest } from '../../scripts/house-rules.ts';
import { readDurations } from '../../scripts/test-durations.ts';
import { readSources, readText, repositoryRoot } from '../../scripts/repository.ts';
import { settingDefinitions, settingKeys } from '../../src/base/settings/settings.ts';
import { launchVariables } from '../../src/store/environment.ts';
import { clusterVariables } from '../../src/graph/cluster/environment.ts';
import { placeVariables } from '../../src/launch/rank-environment.ts';

const knownNames = new Set<string>([
  ...settingKeys.map((key) => settingDefinitions[key].name),
  ...launchVariables,
  ...placeVariables,
  ...clusterVariables,
]);

describe('environment variables', () => {
  it('that code or documentation names are settings, or set by the launcher', () => {
    const docs = readdirSync(join(repositoryRoot, 'docs'), { recursive: true, encoding: 'utf8' })
      .filter((name) => /\.(md|svg)$/.test(name))
      .map((name) => `docs/${name}`);
    const texts = [
      ...readSources().filter(({ path }) => !isTest(path)),
      ...['README.md', 'ARCHITECTURE.md', ...docs].map((path) => ({ path, text: readText(path) })),
    ];
    const unknown = texts.flatMap(({ path, text }) =>
      environmentNames(text)
        .filter((name) => !knownNames.has(name))
        .map((name) => `${path}: ${name}`),
    );
    expect(unknown).toEqual([]);
  });

  it('are found wherever they stand', () => {
    expect(environmentNames("env.SHOAL_A; 'SHOAL_B_2=1' `SHOAL_*` MY_SHOAL_C SHOAL_ SHOAL_D_*")).toEqual(['SHOAL_A', 'SHOAL_B_2']);
  });
});

interface Installed {
  readonly version?: string;
  readonly resolved?: string;
  readonly integrity?: string;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

describe('the lock file', () => {
  const lock = JSON.parse(readText('package-lock.json')) as { packages: Record<string, Installed> };
  const installed = Object.entries(lock.packages).filter(([path]) => path !== '');

  it('says what every package is, not where it was downloaded', () => {
    expect(installed.length).toBeGreaterThan(50);
    expect(installed.filter(([, { resolved }]) => resolved !== undefined)).toEqual([]);
    expect(installed.filter(([, { version, integrity }]) => version === undefined || integrity === undefined)).toEqual([]);
  });

  it('has every optional package: npm ci refuses a lock file that leaves one out', () => {
    const names = new Set(installed.map(([path]) => path.replace(/^.*node_modules\//, '')));
    const wanted = installed.flatMap(([, { optionalDependencies = {} }]) => Object.keys(optionalDependencies));
    expect(wanted.filter((name) => !names.has(name))).toEqual([]);
  });
});

describe('commands', () => {
  it('start scripts that exist', () => {
    const { scripts } = JSON.parse(readText('package.json')) as { scripts: Record<string, string> };
    const named = Object.values(scripts).flatMap((command) => command.match(/(?:scripts|examples|bench)\/[\w./-]+/g) ?? []);
    for (const path of named) expect(statSync(join(repositoryRoot, path)).isFile()).toBe(true);
  });

  it('npm test has measured files that exist', () => {
    const paths = new Set(readSources().map(({ path }) => path));
    expect([...readDurations().keys()].filter((path) => !paths.has(path))).toEqual([]);
  });

  it('.ci/run can be executed', () => {
    expect(statSync(join(repositoryRoot, '.ci/run')).mode & 0o100).toBe(0o100);
  });
});
