import { expect, it } from 'vitest';
import { execCommand, installCommand, isNotInstalled } from './install-commands.ts';

const started = (agent?: string) => ({ npm_config_user_agent: agent });

it('commands are those of the package manager in use', () => {
  const commands = [undefined, 'npm/10.8.2 node/v20', 'pnpm/10.2.0 npm/? node/v20', 'yarn/1.22.22 npm/? node/v20', 'bun/1.2'].map(
    (agent) => [
      installCommand(started(agent), 'zeromq'),
      installCommand(started(agent), 'tsx', { dev: true }),
      execCommand(started(agent), 'shoal compile'),
    ],
  );
  const npm = ['npm install zeromq', 'npm install --save-dev tsx', 'npx shoal compile'];
  expect(commands).toEqual([
    npm,
    npm,
    ['pnpm add zeromq', 'pnpm add --save-dev tsx', 'pnpm exec shoal compile'],
    ['yarn add zeromq', 'yarn add --dev tsx', 'yarn shoal compile'],
    npm,
  ]);
});

it('a package that is not there is told from one that does not load', async () => {
  const missingPackage: string = 'no-such-package';
  const missing = await import(missingPackage).catch((error: unknown) => error);
  expect(isNotInstalled(missing, 'no-such-package')).toBe(true);
  expect(isNotInstalled(missing, 'such')).toBe(false);
  expect(isNotInstalled(new Error("cannot load 'zeromq'"), 'zeromq')).toBe(false);
});
