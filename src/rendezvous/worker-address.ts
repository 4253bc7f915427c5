/** Where a worker is found, as one word that fits into an environment variable: `rendezvous:` and base64url of JSON. It holds no secret. */
import { ShoalError } from '../base/errors.ts';
import { count, describeValue, list, object, parse, text as anyText } from '../base/schema.ts';
import type { FabricAddress } from '../fabric/fabric.ts';

export interface WorkerAddress {
  readonly rank: number;
  readonly fabrics: readonly FabricAddress[];
}

const scheme = 'rendezvous:';
const charactersMax = 16_384;
const part = anyText(1000);
const addressSchema = object({ rank: count, fabrics: list(object({ provider: part, candidates: list(part) })) });

export function formatWorkerAddress(address: WorkerAddress): string {
  return `${scheme}${Buffer.from(JSON.stringify(address)).toString('base64url')}`;
}

/** @throws ShoalError `usage` for what is none. */
export function parseWorkerAddress(text: string): WorkerAddress {
  const wrong = (): ShoalError => {
    const given = describeValue(text).slice(0, 60);
    return new ShoalError('usage', `${given} is not the address of a rendezvous worker; pass what \`worker.address\` says`);
  };
  if (typeof text !== 'string' || !text.startsWith(scheme) || text.length > charactersMax) throw wrong();
  try {
    return parse('an address', addressSchema, JSON.parse(Buffer.from(text.slice(scheme.length), 'base64url').toString()));
  } catch {
    throw wrong();
  }
}
