/** The ways in which a new user installs the package with each package manager, install scripts blocked, and starts its command. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Manager {
  readonly name: string;
  /** Its name for npm, and the place of its program there. */
  readonly fetched?: { readonly package: string; readonly program: string; readonly command: string };
  /** Writes the files that the manager needs in an empty project. */
  prepare?(project: string): void;
  install(what: string): string;
  run(command: string): string;
}

export const managers: readonly Manager[] = [
  { name: 'npm', install: (what) => `npm install --ignore-scripts ${what}`, run: (command) => `npx ${command}` },
  {
    name: 'pnpm',
    fetched: { package: 'pnpm@10', program: 'pnpm/bin/pnpm.cjs', command: 'pnpm' },
    install: (what) => `pnpm add ${what}`,
    run: (command) => `pnpm exec ${command}`,
  },
  {
    name: 'yarn classic',
    fetched: { package: 'yarn@1.22', program: 'yarn/bin/yarn.js', command: 'yarn' },
    install: (what) => `yarn add --ignore-scripts --non-interactive ${what}`,
    run: (command) => `yarn --silent ${command}`,
  },
  {
    name: 'yarn',
    fetched: { package: '@yarnpkg/cli-dist@4', program: '@yarnpkg/cli-dist/bin/yarn.js', command: 'yarn' },
    prepare: (project) => {
      writeFileSync(join(project, '.yarnrc.yml'), 'nodeLinker: node-modules\nenableScripts: false\nenableTelemetry: false\n');
      writeFileSync(join(project, 'yarn.lock'), '');
    },
    install: (what) => `yarn add ${what}`,
    run: (command) => `yarn ${command}`,
  },
];
