/** Addresses of workers, servers and stubs: 64 bits, so that no id ever runs into its neighbour. Pure.
 *
 *    bit  63        40 39                    8 7     0
 *        │ group (24) │ id or process (32)    │ role  │
 *
 *  Ids are unique within (group, role). An address names who, never where: routers learn where. */
import { ShoalError } from '../base/errors.ts';
import { anyNumber, checkFields, optionTable } from '../base/schema.ts';

/** `group << 40 | id << 8 | role`. */
export type Address = bigint;

/** Who may have an address. Any integer from 0 to 255 is a role; these are the ones Shoal uses itself. */
export const Role = {
  /** A worker, for its parameters: gets, puts and updates. */
  workerParameter: 0,
  /** A worker, for its layers: features and gradients of a network that is split over workers. */
  workerLayer: 1,
  /** A server: the owner of a part of the parameters. */
  server: 2,
  /** A process's own end, through which its workers and servers reach other processes. */
  stub: 3,
  /** Whoever runs the job, or calls procedures in it. */
  runtime: 4,
} as const;

/** What an address is made of. */
export interface AddressParts {
  /** Worker or server group, 0…2²⁴−1. */
  readonly group: number;
  /** Worker, server or process id, 0…2³²−1. */
  readonly id: number;
  /** 0…255, for instance `Role.server`. */
  readonly role: number;
}

const partsFields = optionTable<AddressParts>({ group: anyNumber, id: anyNumber, role: anyNumber });

export const groupMax = 0xffffff;
export const idMax = 0xffffffff;
export const roleMax = 0xff;

/** @throws ShoalError `usage` when a part does not fit; parts are never cut. */
export function makeAddress(parts: AddressParts): Address {
  checkFields('makeAddress', parts, partsFields);
  const { group, id, role } = parts;
  checkPart('group', group, groupMax);
  checkPart('id', id, idMax);
  checkPart('role', role, roleMax);
  return (BigInt(group) << 40n) | (BigInt(id) << 8n) | BigInt(role);
}

/** The parts of an address. @throws ShoalError `usage` when it is not an unsigned integer of 64 bits. */
export function parseAddress(address: Address): AddressParts {
  return { group: groupOf(address), id: idOf(address), role: roleOf(address) };
}

/** Worker or server group. @throws ShoalError `usage` as `parseAddress`. */
export function groupOf(address: Address): number {
  checkAddress(address);
  return Number(address >> 40n);
}

/** Of a worker, a server or a process. */
export function idOf(address: Address): number {
  checkAddress(address);
  return Number((address >> 8n) & 0xffffffffn);
}

/** A number of `Role`, or a program's own. @throws ShoalError `usage` as `parseAddress`. */
export function roleOf(address: Address): number {
  checkAddress(address);
  return Number(address & 0xffn);
}

/** For people: `server 3 of group 0`. */
export function formatAddress(address: Address): string {
  const { group, id, role } = parseAddress(address);
  const name = Object.entries(Role).find(([, code]) => code === role)?.[0] ?? `role ${role}`;
  return `${name} ${id} of group ${group}`;
}

/** @throws ShoalError `usage` when it is not an unsigned integer of 64 bits. */
export function checkAddress(address: Address): void {
  if (typeof address === 'bigint' && address >= 0n && address <= 0xffffffffffffffffn) return;
  throw new ShoalError('usage', `address ${String(address)} is not an unsigned 64-bit bigint; make it with makeAddress`);
}

function checkPart(name: string, value: number, most: number): void {
  if (Number.isInteger(value) && value >= 0 && value <= most) return;
  throw new ShoalError('usage', `${name} ${value} of an address is not an integer from 0 to ${most}`);
}
