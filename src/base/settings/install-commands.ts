/** Commands for the user to type to the package manager that started us: npm, pnpm and yarn set `npm_config_user_agent`. */
import type { Environment } from './settings.ts';

type Manager = 'npm' | 'pnpm' | 'yarn';

/** The command that installs packages into the project. */
export function installCommand(environment: Environment, packages: string, options: { readonly dev?: true } = {}): string {
  const dev = { npm: '--save-dev ', pnpm: '--save-dev ', yarn: '--dev ' };
  const manager = managerOf(environment);
  return `${manager} ${manager === 'npm' ? 'install' : 'add'} ${options.dev === true ? dev[manager] : ''}${packages}`;
}

/** The command that runs a program of one of the project's packages. */
export function execCommand(environment: Environment, program: string): string {
  return `${{ npm: 'npx', pnpm: 'pnpm exec', yarn: 'yarn' }[managerOf(environment)]} ${program}`;
}

function managerOf(environment: Environment): Manager {
  const [manager] = /^(pnpm|yarn)(?=\/)/.exec(environment['npm_config_user_agent'] ?? '') ?? ['npm'];
  return manager as Manager;
}

/** True if `error` says that the package itself is not installed, false if it does not load. */
export function isNotInstalled(error: unknown, name: string): boolean {
  const { code, message } = error as { code?: unknown; message?: unknown };
  return (code === 'ERR_MODULE_NOT_FOUND' || code === 'MODULE_NOT_FOUND') && `${String(message)} `.includes(`'${name}'`);
}
