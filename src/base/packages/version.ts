/** The package's version, from its package.json. */
import { readFileSync } from 'node:fs';
import { packageFile } from './package-root.ts';

const manifest = JSON.parse(readFileSync(packageFile('package.json'), 'utf8')) as { version: string };

export const packageVersion = manifest.version;
