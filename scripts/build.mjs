// Compiles src/ into dist/ and removes what no longer has a source: a stale file would still be importable.
import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const dist = join(root, 'dist');
const emitted = /\.(js|js\.map|d\.ts)$/;

const compiler = join(root, 'node_modules/typescript/bin/tsc');
const { status, error } = spawnSync(process.execPath, [compiler, '-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
if (error !== undefined) throw error;
if (status !== 0) process.exit(status ?? 1);

for (const name of readdirSync(dist, { recursive: true })) {
  const source = join(root, 'src', name.replace(emitted, '.ts'));
  if (emitted.test(name) && !existsSync(source)) rmSync(join(dist, name));
}

const { bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
for (const file of Object.values(bin)) {
  if (existsSync(join(root, file))) chmodSync(join(root, file), 0o755);
}
