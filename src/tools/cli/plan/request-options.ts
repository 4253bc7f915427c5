/** Options that say which operation on which world, for `shoal plan` and `shoal simulate`. */
import type { Command } from 'commander';
import { ShoalError } from '../../../base/errors.ts';
import { natural, positive } from '../option-values.ts';

/** Flags as commander gives them; sizes are texts, because they may be lists. */
export interface RequestFlags {
  readonly hosts: number;
  readonly ranksPerHost: number;
  readonly ranks?: number;
  readonly bytes: string;
  readonly dtype: string;
  readonly root?: number;
  readonly piece?: string;
  readonly window?: number;
  readonly slice?: string;
  readonly staging?: string;
  readonly shard?: string;
}

export interface RequestDefaults {
  readonly hosts: number;
  readonly ranksPerHost: number;
  readonly bytes: { readonly about: string; readonly value: string };
}

export function addRequestOptions(command: Command, { hosts, ranksPerHost, bytes }: RequestDefaults): Command {
  return command
    .option('--hosts <count>', 'number of hosts', positive, hosts)
    .option('--ranks-per-host <count>', 'ranks on each', positive, ranksPerHost)
    .option('-n, --ranks <count>', 'instead of --ranks-per-host: ranks in all, as many on each host', positive)
    .option('--bytes <size>', bytes.about, bytes.value)
    .option('--dtype <type>', 'element type', 'float32')
    .option('--root <rank>', 'root of broadcast, reduce, gather, scatter', natural)
    .option('--piece <size>', 'largest transfer, at least 4KiB')
    .option('--window <pieces>', 'most pieces under way to a receiver', positive)
    .option('--slice <size>', 'largest slice, at least 4KiB')
    .option('--staging <size>', 'scratch per rank, at least 4KiB')
    .option('--shard <size>', 'smallest shard');
}

/** The flags with --ranks-per-host as --ranks gives it. @throws ShoalError `usage` when hosts would differ. */
export function withRanksPerHost<F extends RequestFlags>(flags: F): F {
  const { ranks, hosts } = flags;
  if (ranks === undefined) return flags;
  if (ranks % hosts === 0) return { ...flags, ranksPerHost: ranks / hosts };
  throw new ShoalError('usage', `--ranks ${ranks} is not a multiple of --hosts ${hosts}; shoal plan has --layout for hosts that differ`);
}
