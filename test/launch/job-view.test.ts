/** Looks at jobs while they run: `shoal status`, the page for Prometheus, the file of node_exporter. Ranks are stopped, or hang. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { sleep, systemClock } from '../../src/base/clock.ts';
import { repositoryRoot } from '../../scripts/repository.ts';
import { freePort } from '../../src/base/testing/free-port.ts';
import { temporaryFolder } from '../../src/base/testing/temporary-folder.ts';
import { metricDefinitions } from '../../src/metrics/definitions.ts';
import type { ToldStatus } from '../../src/tools/cli/status/format-status.ts';
import { shoal, start, type Running } from '../fixtures/launch-harness.ts';
import { fixtureCommand } from '../support/fixtures.ts';

const script = fixtureCommand('status-rank').at(-1)!;
const deploy = join(repositoryRoot, 'examples/deploy');
const ready = /rank (\d) pid (\d+) ready/;

/** Resolves with what `look` gives, as soon as it gives something. */
async function until<T>(look: () => Promise<T | undefined>): Promise<T> {
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    await sleep(systemClock, 100);
  }
}

async function statusOf(runtime: string, job: Running): Promise<ToldStatus> {
  await using asked = shoal(['status', '--json', '--job', String(job.pid)], { env: { XDG_RUNTIME_DIR: runtime } });
  const { code, stdout, stderr } = await asked.ended;
  expect([code, stderr]).toEqual([0, '']);
  return JSON.parse(stdout) as ToldStatus;
}

describe('shoal status', () => {
  it.each([
    ['hang', 'computing'],
    ['stop', 'stopped'],
  ])('names the rank that holds the others up: %s', async (behaviour, state) => {
    const runtime = temporaryFolder('runtime');
    const env = { XDG_RUNTIME_DIR: runtime };
    await using job = shoal(['run', '-n', '3', script, behaviour], { env });
    await job.output(ready, 3);
    const status = await until(async () => {
      const told = await statusOf(runtime, job);
      return told.holdUps.length > 0 && told.ranks[2].state === state && told.holdUps[0].waiting.length === 2 ? told : undefined;
    });
    expect(status).toMatchObject({ version: 1, worldSize: 3, nodes: 1, restarts: 0, holdUps: [{ rank: 2, waiting: [0, 1] }] });
    expect(status.launcher.pid).toBe(job.pid);
    expect(status.ranks[0]).toMatchObject({ state: 'waiting', steps: 3, calls: 4, pending: 1, call: { ranks: [2], group: 'world' } });
    expect(status.ranks[0].call?.text).toMatch(/^all-reduce #3 float32\[4\] sum at \S*status-rank\.\w+:\d+$/);
    await using text = shoal(['status'], { env });
    const { stdout } = await text.ended;
    expect(stdout).toMatch(new RegExp(`rank 2 holds up ranks 0, 1 for .+: it is ${state}`));
    if (behaviour === 'stop') expect(stdout).toContain(`kill -CONT ${status.ranks[2].pid}`);
  });

  it('finds ranks that no launcher of ours has started', async () => {
    const runtime = temporaryFolder('runtime');
    const env = { XDG_RUNTIME_DIR: runtime };
    const meeting = { WORLD_SIZE: '2', LOCAL_WORLD_SIZE: '2', MASTER_ADDR: '127.0.0.1', MASTER_PORT: String(await freePort()) };
    const rank = (number: string): Running =>
      start([...fixtureCommand('status-rank'), 'stop'], { env: { ...env, ...meeting, RANK: number, LOCAL_RANK: number } });
    await using first = rank('0');
    await using second = rank('1');
    await Promise.all([first.output(ready, 1), second.output(ready, 1)]);
    const status = await until(async () => {
      const told = await statusOf(runtime, first);
      return told.ranks[1].state === 'stopped' && told.holdUps.length > 0 ? told : undefined;
    });
    expect(status).toMatchObject({ worldSize: 2, launcher: { rank: 0, pid: first.pid }, holdUps: [{ rank: 1, waiting: [0] }] });
    expect(status.command.at(-1)).toBe('stop');
    expect(status.ranks).toMatchObject([{ state: 'waiting', steps: 3, pid: first.pid }, { pid: second.pid }]);
    await using text = shoal(['status'], { env });
    expect((await text.ended).stdout).toContain(`(not started by shoal run; rank 0, pid ${first.pid}, tells), 2 ranks`);
    second.child.kill('SIGCONT');
    expect([(await first.ended).code, (await second.ended).code]).toEqual([0, 0]);
    expect(readdirSync(join(runtime, `shoal-${process.getuid!()}`)).filter((name) => name.endsWith('.sock'))).toEqual([]);
  });

  it('says that nothing runs, and removes the socket of a launcher that was killed', async () => {
    const runtime = temporaryFolder('runtime');
    const env = { XDG_RUNTIME_DIR: runtime };
    {
      await using job = shoal(['run', '-n', '1', script, 'hang'], { env });
      await job.output(ready, 1);
      job.child.kill('SIGKILL');
      await job.ended;
    }
    const folder = join(runtime, `shoal-${process.getuid!()}`);
    expect(readdirSync(folder)).toHaveLength(1);
    await using asked = shoal(['status'], { env });
    expect(await asked.ended).toMatchObject({ code: 2, stderr: expect.stringContaining('no job of this user runs') as string });
    expect(readdirSync(folder)).toEqual([]);
  });

  it('knows that the only rank of a job waits for nobody', async () => {
    const runtime = temporaryFolder('runtime');
    await using job = shoal(['run', '-n', '1', script, 'hang'], { env: { XDG_RUNTIME_DIR: runtime } });
    await job.output(ready, 1);
    const { ranks, holdUps } = await statusOf(runtime, job);
    expect([ranks[0].state, holdUps]).toEqual(['computing', []]);
  });

  it.each([
    ['its group', [script]],
    ['its store of parameters', ['--servers', '1', fixtureCommand('pushes').at(-1)!]],
  ])('knows that a rank which has left %s goes on', async (_, command) => {
    const runtime = temporaryFolder('runtime');
    await using job = shoal(['run', '-n', '2', ...command, 'leave'], { env: { XDG_RUNTIME_DIR: runtime } });
    await job.output(/ \d has left/, 2);
    const { ranks, holdUps } = await statusOf(runtime, job);
    expect([ranks.map(({ state }) => state), holdUps]).toEqual([['computing', 'computing'], []]);
  });

  it('watches until the job ends', async () => {
    const runtime = temporaryFolder('runtime');
    const env = { XDG_RUNTIME_DIR: runtime };
    await using job = shoal(['run', '-n', '2', script, 'stop'], { env });
    const pids = new Map((await job.output(ready, 2)).map(([, rank, pid]) => [Number(rank), Number(pid)]));
    await using watching = shoal(['status', '--watch', '0.1', '--json'], { env });
    await watching.output(/"holdUps":\[\{"rank":1/, 1);
    process.kill(pids.get(1)!, 'SIGCONT');
    expect((await job.ended).code).toBe(0);
    const { code, stderr } = await watching.ended;
    expect([code, stderr]).toEqual([0, expect.stringMatching(/^shoal: job \w+ has ended\n$/)]);
  });
});

describe('metrics', () => {
  it('of a job are one page and one file, also while a rank is stopped; they go with the job', async () => {
    const runtime = temporaryFolder('runtime');
    const folder = temporaryFolder('textfile');
    const port = await freePort();
    const flags = ['--metrics', String(port), '--metrics-textfile', folder];
    await using job = shoal(['run', '-n', '2', ...flags, script, 'stop'], { env: { XDG_RUNTIME_DIR: runtime } });
    const pids = new Map((await job.output(ready, 2)).map(([, rank, pid]) => [Number(rank), Number(pid)]));
    const page = await until(async () => {
      const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
      return text.includes('shoal_rank_up{rank="1"} 0') ? text : undefined;
    });
    expect(page).toContain('shoal_steps_total{rank="0"} 3\n');
    expect(page).toMatch(/shoal_calls_total\{rank="0",group="world",collective="all-reduce",path="host path"\} [34]\n/);
    expect(page).toMatch(/shoal_wait_seconds\{rank="0"\} [\d.e-]+\n/);
    for (const name of new Set([...page.matchAll(/^# TYPE (\S+)/gm)].map(([, each]) => each)))
      expect(Object.values(metricDefinitions).map((each) => each.name)).toContain(name);
    const file = join(folder, `shoal-${job.pid}.prom`);
    await until(async () => (existsSync(file) && readFileSync(file, 'utf8').includes('shoal_rank_up{rank="1"} 0\n') ? true : undefined));
    expect((await fetch(`http://127.0.0.1:${port}/`)).status).toBe(404);
    process.kill(pids.get(1)!, 'SIGCONT');
    expect((await job.ended).code).toBe(0);
    expect(readdirSync(folder)).toEqual([]);
    await expect(fetch(`http://127.0.0.1:${port}/metrics`)).rejects.toThrow();
  });

  it('have every name that the dashboard and the alerts ask for', async () => {
    const port = await freePort();
    await using job = shoal(['run', '-n', '2', '--servers', '1', '--metrics', String(port), script, 'schedule']);
    await job.output(ready, 2);
    const files = ['grafana-dashboard.json', 'prometheus-alerts.yaml'].map((name) => readFileSync(join(deploy, name), 'utf8'));
    const asked = new Set(files.flatMap((text) => [...text.matchAll(/(?<!\\")\bshoal_[a-z_]+/g)].map(([name]) => name)));
    expect(asked.size).toBeGreaterThan(20);
    await until(async () => {
      const page = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
      const there = new Set([...page.matchAll(/^(shoal_\w+)/gm)].map(([name]) => name));
      const missing = [...asked].filter((name) => !there.has(name));
      return missing.length === 0 ? true : undefined;
    });
    // Nobody can ask for what the page of the docs does not list.
    const docs = readFileSync(join(repositoryRoot, 'docs/operating.md'), 'utf8');
    for (const { name } of Object.values(metricDefinitions)) expect(docs).toContain(`\`${name}\``);
  });

  it('of parameter servers are on the page of their launcher, and in shoal status; also while one is stopped', async () => {
    const port = await freePort();
    const env = { XDG_RUNTIME_DIR: temporaryFolder('runtime') };
    const flags = ['-n', '2', '--servers', '1', '--replicas', '2', '--metrics', String(port)];
    await using job = shoal(['run', ...flags, fixtureCommand('pushes').at(-1)!], { env });
    await job.output(/worker \d pushes/, 2);
    const page = await until(async () => {
      const text = await (await fetch(`http://127.0.0.1:${port}/metrics`)).text();
      return text.includes('shoal_server_up{process="standby 0"} 1') ? text : undefined;
    });
    expect(page).toContain('shoal_server_up{process="server 0"} 1\n');
    expect(page).toMatch(/shoal_server_requests_total\{process="server 0",kind="update"\} [1-9]/);
    expect(page).toContain('shoal_server_keys{process="server 0"} 1\n');
    expect(page).toContain('shoal_server_clients{process="server 0"} 2\n');
    expect(page).toContain('shoal_server_standby{process="standby 0"} 1\n');
    // Workers without a process group answer too.
    expect(page).toContain('shoal_rank_up{rank="1"} 1\n');
    expect(page).toMatch(/shoal_credit_bytes\{rank="0",group="server 0"\} [1-9]/);
    const docs = readFileSync(join(repositoryRoot, 'docs/operating.md'), 'utf8');
    for (const [, name] of page.matchAll(/^# TYPE (shoal_server\S+)/gm)) expect(docs).toContain(`\`${name}\``);
    await using text = shoal(['status'], { env });
    const { stdout } = await text.ended;
    expect(stdout).toMatch(/^server 0: serves, \d+ requests, \d+ waiting, 1 keys, 2 clients \(pid \d+\)$/m);
    expect(stdout).toMatch(/^1 +(computing|communicating) /m);
    expect(stdout).toMatch(/^standby 0: stands by, .* \(pid \d+\)$/m);
    const pid = Number(/^standby 0: .* \(pid (\d+)\)$/m.exec(stdout)?.[1]);
    process.kill(pid, 'SIGSTOP');
    await using stopped = shoal(['status'], { env });
    expect((await stopped.ended).stdout).toMatch(/^standby 0: stopped by a signal \(pid \d+\)$/m);
    process.kill(pid, 'SIGCONT');
  });

  it('of a process have a port of its own', async () => {
    const port = await freePort();
    await using rank = start([...fixtureCommand('status-rank'), 'hang'], { env: { SHOAL_METRICS: String(port), RANK: undefined } });
    await rank.output(ready, 1);
    const page = await until(async () => {
      const text = await fetch(`http://127.0.0.1:${port}/metrics`).then(
        (answer) => answer.text(),
        () => undefined,
      );
      return text?.includes('shoal_steps_total{rank="0"} 3\n') === true ? text : undefined;
    });
    expect(page).toContain('shoal_world_size{rank="0"} 1\n');
  });

  it('a place that is none is refused before anything is started', async () => {
    for (const [args, env, words] of [
      [['run', '--metrics', '99999', script], {}, '--metrics 99999: expected a port'],
      [['run', '--metrics', 'script.mjs', script], {}, 'Expected a port'],
      [['run', script], { SHOAL_METRICS: 'here' }, 'SHOAL_METRICS here: expected a port'],
    ] as const) {
      await using refused = shoal(args, { env });
      expect(await refused.ended).toMatchObject({ code: 2, stderr: expect.stringContaining(words) as string });
    }
  });
});
