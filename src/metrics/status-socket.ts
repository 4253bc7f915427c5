/** The sockets by which jobs tell `shoal status` how they are: one for each launcher of this user on this machine, and for one rank of each
 *  job that has none of ours, in a folder of the user's alone. A process that was killed leaves its socket; whoever looks next removes
 *  it. */
import { readdirSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { join } from 'node:path';
import { messageOf, ShoalError } from '../base/errors.ts';
import { isAlive } from '../base/files/process-identity.ts';
import type { Environment } from '../base/settings/settings.ts';
import { privateDirectory } from '../store/meeting.ts';

const socketName = /^(\d+)\.sock$/;
const connectionsMax = 16;
/** A process that does not answer in this time is stopped, or hangs. */
const answerMs = 10_000;

/** A process of this user that tells of a job. */
export interface FoundTeller {
  readonly pid: number;
  readonly path: string;
}

/** Answers for this process, to everyone who connects: one JSON text, or `{"error": …}`. @returns what ends it.
 *  @throws (rejects) ShoalError `config` where there is no place for the socket. */
export async function serveStatus(environment: Environment, status: () => Promise<unknown>): Promise<() => void> {
  const path = join(await privateDirectory(environment), `${process.pid}.sock`);
  // A process that had the same number may have left its socket.
  rmSync(path, { force: true });
  await findTellers(environment);
  const server = createServer((socket) => {
    socket.on('error', () => socket.destroy()).unref();
    status().then(
      (told) => socket.end(JSON.stringify(told)),
      (thrown: unknown) => socket.end(JSON.stringify({ error: messageOf(thrown) })),
    );
  });
  server.maxConnections = connectionsMax;
  await new Promise<void>((resolve, reject) => void server.once('error', reject).listen(path, resolve));
  server.unref();
  return () => void server.close();
}

/** @throws (rejects) ShoalError `config` when the folder is not this user's alone. */
export async function findTellers(environment: Environment): Promise<FoundTeller[]> {
  const folder = await privateDirectory(environment);
  return readdirSync(folder).flatMap((name) => {
    const pid = Number(socketName.exec(name)?.[1]);
    if (Number.isNaN(pid)) return [];
    const path = join(folder, name);
    if (isAlive(pid)) return [{ pid, path }];
    rmSync(path, { force: true });
    return [];
  });
}

/** Its answer. @throws (rejects) ShoalError `timeout` when it does not answer, `closed` when it ends meanwhile or says why not. */
export function readStatus({ pid, path }: FoundTeller): Promise<object> {
  return new Promise((resolve, reject) => {
    const parts: Buffer[] = [];
    const socket = connect(path);
    socket.setTimeout(answerMs, () => {
      const message = `process ${pid}, which tells of a job, does not answer within ${answerMs / 1000} s; it may be stopped: kill -CONT ${pid}`;
      socket.destroy(new ShoalError('timeout', message, { timeoutMs: answerMs }));
    });
    socket.on('data', (part: Buffer) => parts.push(part));
    socket.on('error', (error) => reject(ShoalError.from(error, 'closed')));
    socket.on('end', () => {
      const text = Buffer.concat(parts).toString();
      const told = (text === '' ? { error: `process ${pid} has ended` } : JSON.parse(text)) as { error?: string };
      if (told.error === undefined) resolve(told);
      else reject(new ShoalError('closed', told.error));
    });
  });
}
