/** Addresses of dealers and routers: 64 bits, so that no id ever runs into its neighbour. Pure.
 *
 *    bit  63        40 39                    8 7     0
 *        │ group (24) │ id or process (32)    │ role  │
 *
 *  Ids are unique within (group, role). What a role's number means is its users' affair. An address names who, never where: routers learn
 *  where. */
import { ShoalError } from '../base/errors.ts';
import { checkFields, integer, optionTable } from '../base/schema.ts';

/** `group << 40 | id << 8 | role`. */
export type Address = bigint;

/** The parts of an address. */
export interface AddressParts {
  /** Group, 0…2²⁴−1. */
  readonly group: number;
  /** Number within its group and role, 0…2³²−1. */
  readonly id: number;
  /** Kind of participant, 0…255. */
  readonly role: number;
}

const partsFields = optionTable<AddressParts>({
  group: integer({ min: 0, max: 0xffffff }),
  id: integer({ min: 0, max: 0xffffffff }),
  role: integer({ min: 0, max: 0xff }),
});

/** @throws ShoalError `usage` when a part does not fit; parts are never cut. */
export function makeAddress(parts: AddressParts): Address {
  checkFields('makeAddress', parts, partsFields);
  const { group, id, role } = parts;
  return (BigInt(group) << 40n) | (BigInt(id) << 8n) | BigInt(role);
}

/** The parts of an address. @throws ShoalError `usage` when it is not an unsigned integer of 64 bits. */
export function parseAddress(address: Address): AddressParts {
  return { group: groupOf(address), id: idOf(address), role: roleOf(address) };
}

/** The group. @throws ShoalError `usage` as `parseAddress`. */
export function groupOf(address: Address): number {
  checkAddress(address);
  return Number(address >> 40n);
}

/** The number within group and role. @throws ShoalError `usage` as `parseAddress`. */
export function idOf(address: Address): number {
  checkAddress(address);
  return Number((address >> 8n) & 0xffffffffn);
}

/** The number of the role. @throws ShoalError `usage` as `parseAddress`. */
export function roleOf(address: Address): number {
  checkAddress(address);
  return Number(address & 0xffn);
}

/** The address in words: `address 3 of group 0 in role 2`. */
export function formatAddress(address: Address): string {
  return `address ${idOf(address)} of group ${groupOf(address)} in role ${roleOf(address)}`;
}

/** @throws ShoalError `usage` when it is not an unsigned integer of 64 bits. */
export function checkAddress(address: Address): void {
  if (typeof address === 'bigint' && address >= 0n && address <= 0xffffffffffffffffn) return;
  throw new ShoalError('usage', `address ${String(address)} is not an unsigned 64-bit bigint; make it with makeAddress`);
}
