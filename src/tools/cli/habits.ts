/** Options as users of torchrun and mpirun type them: other spellings of ours are understood, and where we have no such option the
 *  error says what to do instead. It must not know what options mean. */
import { ShoalError } from '../../base/errors.ts';

/** The part of commander's options that is read here. */
export interface KnownOption {
  readonly short?: string;
  readonly long?: string;
  /** It takes a value. */
  readonly required: boolean;
}

export interface KnownCommand {
  readonly name: () => string;
  readonly options: readonly KnownOption[];
}

/** Spellings that differ by more than underscores. */
const spellings: Readonly<Record<string, string>> = {
  '-np': '-n',
  '-N': '-n',
  '--np': '-n',
  '--nproc': '-n',
  '--rdzv-id': '--job-id',
  '--no-python': '--no-node',
  '--output-filename': '--log-dir',
};

const machines =
  'start `shoal run --nnodes <count> --node-rank <index> --master-addr <address>` on each machine, or let mpirun start the ranks';

/** Options of torchrun and mpirun that have no counterpart, by what to do instead. */
const advices: readonly (readonly [names: string, advice: string])[] = [
  ['-m --module', 'name the file of the script'],
  ['--local-addr', 'set SHOAL_INTERFACES to the interface'],
  ['-H -host --host -hostfile --hostfile -machinefile --machinefile', machines],
  ['-x', 'leave it out, because ranks have the whole environment of the launcher'],
  ['-wdir --wdir', 'start shoal in that folder'],
  [
    '--role --monitor-interval --start-method --rdzv-conf --use-env --run-path --oversubscribe --allow-run-as-root --bind-to --map-by --mca',
    'it is not needed here, leave it out',
  ],
];

/** The arguments of `shoal` in its own spelling. What follows the script of `shoal run` is the script's, and stays.
 *  @throws ShoalError `usage` for options of torchrun and mpirun that have no counterpart. */
export function inOurSpelling(args: readonly string[], commands: readonly KnownCommand[]): string[] {
  const command = commands.find((each) => each.name() === args[0]);
  if (command === undefined) return [...args];
  const isRun = command.name() === 'run';
  const translated = [args[0]];
  let at = 1;
  while (at < args.length) {
    const arg = args[at++];
    if (!arg.startsWith('-') || arg === '-' || arg === '--') {
      translated.push(arg);
      if (isRun || arg === '--') break;
      continue;
    }
    const [name, value] = split(arg);
    if (isRun && (name === '--rdzv-endpoint' || name === '--rdzv-backend')) {
      translated.push(...rendezvous(name, value ?? args[at++]));
      continue;
    }
    const ours = spell(name, command, isRun);
    translated.push(value === undefined ? ours : ours.startsWith('--') ? `${ours}=${value}` : ours);
    if (value !== undefined && !ours.startsWith('--')) translated.push(value);
    if (value === undefined && at < args.length && takesValue(ours, command)) translated.push(args[at++]);
  }
  return [...translated, ...args.slice(at)];
}

/** `--nproc_per_node=2`: `--nproc-per-node` and `2`. */
function split(arg: string): [name: string, value: string | undefined] {
  const equals = arg.indexOf('=');
  const name = equals < 0 ? arg : arg.slice(0, equals);
  return [withDashes(name), equals < 0 ? undefined : arg.slice(equals + 1)];
}

function withDashes(name: string): string {
  return name.startsWith('--') ? name.replaceAll('_', '-') : name;
}

function spell(name: string, { options }: KnownCommand, isRun: boolean): string {
  const known = options.find(({ long, short }) => name === short || (long !== undefined && withDashes(long) === name));
  if (known !== undefined) return name === known.short ? name : (known.long ?? name);
  const [, advice] = advices.find(([names]) => names.split(' ').includes(name)) ?? [];
  if (isRun && advice !== undefined) throw new ShoalError('usage', `shoal run has no ${name}: ${advice}`);
  const ours = spellings[name];
  return ours !== undefined && options.some(({ long, short }) => ours === short || ours === long) ? ours : name;
}

function takesValue(ours: string, { options }: KnownCommand): boolean {
  return options.some(({ long, short, required }) => required && (ours === short || ours === long));
}

/** torchrun's rendezvous is the store on machine 0 here. */
function rendezvous(name: string, value: string | undefined): string[] {
  if (name === '--rdzv-backend') {
    if (value === 'c10d' || value === 'static') return [];
    throw new ShoalError('usage', `shoal run has no --rdzv-backend ${value}: ranks meet at --master-addr and --master-port`);
  }
  const [, host, port] = /^(\[.+\]|[^:]+|.*:.*:.*?)(?::(\d+))?$/.exec(value ?? '') ?? [];
  if (host === undefined) throw new ShoalError('usage', '--rdzv-endpoint needs <host>:<port>');
  return ['--master-addr', host, ...(port === undefined ? [] : ['--master-port', port])];
}
