/** Compares the registrations of all ranks: names, shapes, dtypes and order of parameters, and the settings that shape the
 *  collectives. It must not know buckets or gradients. */
import { dataViewOf, Layout } from '../base/bytes.ts';
import { ShoalError } from '../base/errors.ts';
import { describeValue, isPlainObject } from '../base/schema.ts';
import type { CallOptions, ProcessGroup, Work } from '../group/caller/types.ts';
import type { ParameterSpec } from './buckets.ts';
import { checksum, checksumBytes } from './checksum.ts';

/** Everything that has to agree between ranks, as text: one line of settings, then one per parameter. */
export function registrationText(parameters: readonly ParameterSpec[], settings: Readonly<Record<string, unknown>>): string {
  const first = Object.entries(settings).map(([setting, value]) => `${setting}=${settingText(value)}`);
  const lines = parameters.map(({ name, shape, dtype }) => `${JSON.stringify(name)} ${dtype}[${shape.join(', ')}]`);
  return [first.join(' '), ...lines].join('\n');
}

/** Deepest nesting of options that is compared. */
const depthMax = 8;

/** Text that is the same for equal settings. Functions and the like differ by rank; only their type is compared. */
function settingText(value: unknown, depth = 0): string {
  if (typeof value === 'string') return depth === 0 && /^[\w.-]+$/.test(value) ? value : JSON.stringify(value);
  if (depth === depthMax) return '…';
  if (Array.isArray(value)) return `[${value.map((each) => settingText(each, depth + 1)).join(', ')}]`;
  if (!isPlainObject(value)) return describeValue(value);
  const given = Object.entries(value).filter(([, each]) => each !== undefined);
  const sorted = given.toSorted(([a], [b]) => (a < b ? -1 : 1));
  return `{${sorted.map(([key, each]) => `${key}: ${settingText(each, depth + 1)}`).join(', ')}}`;
}

/** The fingerprint of a rank's registration. */
const fingerprint = new Layout('a registration', { checksum: 8, bytes: 'f53' });

type RegistrationGroup = Pick<ProcessGroup, 'rank' | 'size' | 'allGather'>;

/** Collective. Two rounds: fingerprints (checksum and length) always, the texts themselves only when those differ; every
 *  rank sees the same fingerprints, so every rank takes the same rounds.
 *  @throws ShoalError `mismatch` on every rank, with each rank's first difference from rank 0. */
export async function verifyRegistration(group: RegistrationGroup, text: string, call: CallOptions): Promise<void> {
  for (const round of rounds(group, text, call)) await round;
}

/** Like `verifyRegistration`, but blocks this thread. */
export function verifyRegistrationSync(group: RegistrationGroup, text: string, call: CallOptions): void {
  for (const round of rounds(group, text, call)) round.waitSync();
}

/** The collectives of both ways to verify; the caller waits for each work before it goes on. */
function* rounds(group: RegistrationGroup, text: string, call: CallOptions): Generator<Work, void> {
  const own = new TextEncoder().encode(text);
  const head = fingerprint.encode({ checksum: checksumBytes(checksum([own])), bytes: own.length });
  const heads = new Uint8Array(head.length * group.size);
  yield group.allGather(heads, head, { ...call, name: 'ddp/registration' });
  const ranks = Array.from({ length: group.size }, (_, rank) => rank);
  if (ranks.every((rank) => Buffer.compare(heads.subarray(rank * head.length, (rank + 1) * head.length), head) === 0)) return;
  const counts = ranks.map((rank) => fingerprint.read(dataViewOf(heads), rank * head.length).bytes);
  const all = new Uint8Array(counts.reduce((a, b) => a + b, 0));
  yield group.allGather(all, own, { ...call, counts, name: 'ddp/registrations' });
  let end = 0;
  const registrations = counts.map((count) => {
    end += count;
    return new TextDecoder().decode(all.subarray(end - count, end)).split('\n');
  });
  const message = `ddp: ranks registered different parameters or settings: ${differences(registrations)}; give all ranks the same`;
  throw new ShoalError('mismatch', message, { rank: group.rank, operation: 'ddp/registration' });
}

/** The first difference from rank 0 of each rank that differs. */
function differences(registrations: readonly (readonly string[])[]): string {
  const [reference] = registrations;
  const found: string[] = [];
  for (const [rank, lines] of registrations.entries()) {
    const longest = lines.length > reference.length ? lines : reference;
    const at = longest.findIndex((_, i) => lines[i] !== reference[i]);
    if (at < 0) continue;
    const where = at === 0 ? 'settings are' : `parameter ${at - 1} is`;
    found.push(`${where} ${lines[at] ?? 'missing'} on rank ${rank} but ${reference[at] ?? 'missing'} on rank 0`);
  }
  return found.join('; ');
}
