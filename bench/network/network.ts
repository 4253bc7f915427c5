/** Several hosts on one machine: network namespaces 10.77.0.1, .2, … on one switch. Their traffic stays between them.
 *
 *    shaped by the kernel (rate only)                       through a program in user space (delay, jitter, loss)
 *
 *    shoal-…-0 eth0 ══ tbf ══╗                              shoal-…-0 eth0 ──╮
 *    shoal-…-1 eth0 ══ tbf ══╬═ br0 in shoal-…-s            shoal-…-1 eth0 ──┼─ tap-relay
 *    shoal-…-2 eth0 ══ tbf ══╝                              shoal-…-2 eth0 ──╯
 *
 *  Needs root, iproute2 and, for delay and loss, g++ and /dev/net/tun. Everything is removed on disposal; what a killed process
 *  left is removed by the next one that makes a network. */
import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface NetworkOptions {
  /** Number of hosts, 2 to 64. */
  readonly hosts: number;
  /** Rate of every host's link, each way, in Mbit/s; 0: as fast as it goes. Default 0. */
  readonly rateMbit?: number;
  /** Delay one way. Default 0. */
  readonly delayUs?: number;
  /** Jitter, uniform, added to the delay; frames stay in order. Default 0. */
  readonly jitterUs?: number;
  /** Share of packets that are lost. Default 0. */
  readonly lossPercent?: number;
}

export interface Network extends Disposable {
  /** Common name of the namespaces, before `-0`, `-1`, …. */
  readonly name: string;
  readonly description: string;
  readonly hosts: readonly Host[];
}

export interface Host {
  readonly namespace: string;
  readonly address: string;
  /** Arguments put before a command to run it on the host. */
  readonly enter: readonly string[];
}

export const interfaceName = 'eth0';

const relaySource = fileURLToPath(new URL('tap-relay.cpp', import.meta.url));
const hostsMax = 64;
/** Burst of the shaper; a millisecond at 2 Gbit/s. */
const burst = '256kb';
const queueLimit = '2mb';

/** The reason why no network can be made here; undefined when it can. */
export function networkUnavailable(): string | undefined {
  if (process.platform !== 'linux') return 'network namespaces are a feature of Linux';
  if (process.getuid?.() !== 0) return 'making network namespaces needs root';
  if (spawnSync('ip', ['-V']).status !== 0) return 'there is no ip command; apt-get install iproute2';
  const trial = `shoal-${process.pid}-trial`;
  const { status, stderr } = spawnSync('ip', ['netns', 'add', trial], { encoding: 'utf8' });
  if (status !== 0) return `network namespaces are not allowed here: ${stderr.trim()}`;
  spawnSync('ip', ['netns', 'del', trial]);
  return undefined;
}

/** The reason why hosts cannot be joined with delay, jitter or loss; undefined when they can. */
export function relayUnavailable(): string | undefined {
  if (!existsSync('/dev/net/tun')) return 'there is no /dev/net/tun';
  return spawnSync('g++', ['--version']).status === 0 ? undefined : 'there is no g++; apt-get install g++';
}

/** @throws Error when a step fails; everything made so far is removed. */
export async function createNetwork(options: NetworkOptions): Promise<Network> {
  const { hosts: count, rateMbit = 0, delayUs = 0, jitterUs = 0, lossPercent = 0 } = options;
  if (!Number.isInteger(count) || count < 2 || count > hostsMax) throw new Error(`a network has 2 to ${hostsMax} hosts, not ${count}`);
  for (const [key, value] of Object.entries({ rateMbit, delayUs, jitterUs, lossPercent })) {
    if (!(value >= 0)) throw new Error(`${key} must be a number from 0, not ${value}`);
  }
  if (lossPercent >= 100) throw new Error(`lossPercent must be below 100, not ${lossPercent}`);
  removeAbandoned();
  const name = `shoal-${process.pid}-${randomBytes(2).toString('hex')}`;
  const hosts = Array.from({ length: count }, (_, k): Host => {
    const namespace = `${name}-${k}`;
    const enter = ['ip', 'netns', 'exec', namespace, 'unshare', '--uts', 'sh', '-c', `hostname host-${k} && exec "$@"`, 'sh'];
    return { namespace, address: `10.77.0.${k + 1}`, enter };
  });
  const relayed = delayUs > 0 || jitterUs > 0 || lossPercent > 0;
  let relay: ChildProcess | undefined;
  const remove = (): void => {
    relay?.kill('SIGKILL');
    removeNamespaces(namespacesOf(name));
  };
  try {
    for (const { namespace } of hosts) {
      ip('netns', 'add', namespace);
      ip('-n', namespace, 'link', 'set', 'lo', 'up');
    }
    if (relayed) relay = await startRelay(hosts, { rateMbit, delayUs, jitterUs, lossPercent });
    else joinBySwitch(hosts, { name, rateMbit });
    for (const [k, { namespace, address }] of hosts.entries()) {
      const hardware = `02:00:00:00:00:${(k + 1).toString(16).padStart(2, '0')}`;
      ip('-n', namespace, 'link', 'set', interfaceName, 'address', hardware);
      ip('-n', namespace, 'link', 'set', interfaceName, 'txqueuelen', '4000', 'up');
      ip('-n', namespace, 'addr', 'add', `${address}/24`, 'dev', interfaceName);
    }
  } catch (error) {
    remove();
    throw error;
  }
  return { name, hosts, description: describe({ hosts: count, rateMbit, delayUs, jitterUs, lossPercent }), [Symbol.dispose]: remove };
}

function joinBySwitch(hosts: readonly Host[], { name, rateMbit }: { name: string; rateMbit: number }): void {
  const middle = `${name}-s`;
  ip('netns', 'add', middle);
  ip('-n', middle, 'link', 'add', 'br0', 'type', 'bridge');
  ip('-n', middle, 'link', 'set', 'br0', 'up');
  for (const [k, { namespace }] of hosts.entries()) {
    const port = `port${k}`;
    ip('link', 'add', interfaceName, 'netns', namespace, 'type', 'veth', 'peer', 'name', port, 'netns', middle);
    ip('-n', middle, 'link', 'set', port, 'master', 'br0', 'up');
    if (rateMbit === 0) continue;
    // Both directions are shaped: out of the host, and out of the switch towards it.
    shape(namespace, interfaceName, rateMbit);
    shape(middle, port, rateMbit);
  }
}

function shape(namespace: string, device: string, rateMbit: number): void {
  run('tc', [
    '-n',
    namespace,
    'qdisc',
    'add',
    'dev',
    device,
    'root',
    'tbf',
    'rate',
    `${rateMbit}mbit`,
    'burst',
    burst,
    'limit',
    queueLimit,
  ]);
}

async function startRelay(
  hosts: readonly Host[],
  { rateMbit, delayUs, jitterUs, lossPercent }: Required<Omit<NetworkOptions, 'hosts'>>,
): Promise<ChildProcess> {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-relay-'));
  try {
    const reason = relayUnavailable();
    if (reason !== undefined) throw new Error(`no network with delay or loss: ${reason}`);
    const program = join(folder, 'tap-relay');
    run('g++', ['-std=c++17', '-O2', '-Wall', '-Wextra', '-o', program, relaySource]);
    const numbers = { '--rate-mbit': rateMbit, '--delay-us': delayUs, '--jitter-us': jitterUs, '--loss-percent': lossPercent };
    const flags = Object.entries(numbers).flatMap(([flag, value]) => [flag, String(value)]);
    const relay = spawn(program, [...flags, ...hosts.map(({ namespace }) => namespace)], { stdio: ['ignore', 'pipe', 'pipe'] });
    let stderr = '';
    relay.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
    await new Promise<void>((resolve, reject) => {
      relay.stdout.once('data', () => resolve());
      relay.once('error', reject);
      relay.once('exit', (code) => reject(new Error(`tap-relay ended with code ${code}: ${stderr.trim()}`)));
    });
    // The relay must not keep this process alive.
    relay.unref();
    return relay;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Removes networks of processes that have ended. */
function removeAbandoned(): void {
  const abandoned = namespacesOf('shoal').filter((namespace) => {
    const owner = Number(/^shoal-(\d+)-/.exec(namespace)?.[1]);
    return owner > 0 && !existsSync(`/proc/${owner}`);
  });
  removeNamespaces(abandoned);
}

/** Namespaces of ours, by the beginning of their names. */
export function namespacesOf(name: string): string[] {
  const { stdout } = spawnSync('ip', ['netns', 'list'], { encoding: 'utf8' });
  return (stdout ?? '')
    .split('\n')
    .map((line) => line.split(' ')[0])
    .filter((namespace) => namespace.startsWith(`${name}-`));
}

/** Removes namespaces, with the processes that still run in them. */
function removeNamespaces(namespaces: readonly string[]): void {
  for (const namespace of namespaces) {
    const { stdout } = spawnSync('ip', ['netns', 'pids', namespace], { encoding: 'utf8' });
    for (const pid of (stdout ?? '').split('\n').map(Number)) if (pid > 0 && pid !== process.pid) kill(pid);
    spawnSync('ip', ['netns', 'del', namespace]);
  }
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The process has ended already.
  }
}

function describe({ hosts, rateMbit, delayUs, jitterUs, lossPercent }: Required<NetworkOptions>): string {
  const rate = rateMbit === 0 ? 'unshaped' : rateMbit % 1000 === 0 ? `${rateMbit / 1000} Gbit/s` : `${rateMbit} Mbit/s`;
  const parts = [`${hosts} hosts`, rate];
  if (delayUs > 0 || jitterUs > 0) parts.push(`${delayUs} µs one way${jitterUs > 0 ? ` + up to ${jitterUs} µs` : ''}`);
  if (lossPercent > 0) parts.push(`${lossPercent} % loss`);
  return parts.join(', ');
}

function ip(...args: readonly string[]): void {
  run('ip', args);
}

function run(program: string, args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(program, args, { encoding: 'utf8' });
  if (error !== undefined) throw new Error(`${program} does not start: ${error.message}`);
  if (status !== 0) throw new Error(`${program} ${args.join(' ')}: ${stderr.trim()}`);
}
