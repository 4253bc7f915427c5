/** What the user types to the package manager that started us: npm, pnpm and yarn set `npm_config_user_agent`. */
import type { Environment } from './settings.ts';

type Manager = 'npm' | 'pnpm' | 'yarn';

/** Installs packages into the project. */
export function installCommand(environment: Environment, packages: string, options: { readonly dev?: true } = {}): string {
  const dev = { npm: '--save-dev ', pnpm: '--save-dev ', yarn: '--dev ' };
  const manager = managerOf(environment);
  return `${manager} ${manager === 'npm' ? 'install' : 'add'} ${options.dev === true ? dev[manager] : ''}${packages}`;
}

/** Runs a program that a package of the project has. */
export function execCommand(environment: Environment, program: string): string {
  return `${{ npm: 'npx', pnpm: 'pnpm exec', yarn: 'yarn' }[managerOf(environment)]} ${program}`;
}

function managerOf(environment: Environment): Manager {
  const [manager] = /^(pnpm|yarn)(?=\/)/.exec(environment['npm_config_user_agent'] ?? '') ?? ['npm'];
  return manager as Manager;
}

/** Whether `error` says that the package itself is not installed, rather than that it does not load. */
export function isNotInstalled(error: unknown, name: string): boolean {
  const { code, message } = error as { code?: unknown; message?: unknown };
  return (code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND') && `${String(message)} `.includes(`'${name}'`);
}
