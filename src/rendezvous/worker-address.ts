/** Where a worker is found, as one word that fits into an environment variable: `rendezvous:` and base64url of JSON. It holds no secret. */
import { ShoalError } from '../base/errors.ts';
import { describeValue } from '../base/schema.ts';
import { isCount } from '../base/bytes.ts';
import type { FabricAddress } from '../fabric/fabric.ts';

export interface WorkerAddress {
  readonly rank: number;
  readonly fabrics: readonly FabricAddress[];
}

const scheme = 'rendezvous:';
const charactersMax = 16_384;

export function formatWorkerAddress(address: WorkerAddress): string {
  return `${scheme}${Buffer.from(JSON.stringify(address)).toString('base64url')}`;
}

/** @throws ShoalError `usage` for what is none. */
export function parseWorkerAddress(text: string): WorkerAddress {
  const wrong = (): ShoalError =>
    new ShoalError(
      'usage',
      `${describeValue(text).slice(0, 60)} is not the address of a rendezvous worker; pass what \`worker.address\` says`,
    );
  if (typeof text !== 'string' || !text.startsWith(scheme) || text.length > charactersMax) throw wrong();
  let parsed: Partial<WorkerAddress>;
  try {
    parsed = JSON.parse(Buffer.from(text.slice(scheme.length), 'base64url').toString()) as Partial<WorkerAddress>;
  } catch {
    throw wrong();
  }
  const isText = (value: unknown): value is string => typeof value === 'string' && value.length <= 1000;
  const { rank, fabrics } = parsed ?? {};
  const areFabrics =
    Array.isArray(fabrics) &&
    fabrics.every(
      ({ provider, candidates }: Partial<FabricAddress>) => isText(provider) && Array.isArray(candidates) && candidates.every(isText),
    );
  if (!isCount(rank as number) || !areFabrics) throw wrong();
  return { rank: rank as number, fabrics: fabrics as readonly FabricAddress[] };
}
