/** Serves texts over HTTP, to Prometheus; and writes them to a file for node_exporter. */
import { rmSync } from 'node:fs';
import type { Server } from 'node:http';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Clock } from '../base/clock.ts';
import { messageOf, ShoalError } from '../base/errors.ts';
import { writeFileWhole } from '../base/files/write-file.ts';
import { builtEntry } from '../base/packages/package-root.ts';
import { RepeatedWrite } from '../trace/repeated-write.ts';
import type { Sample } from './definitions.ts';
import type { contentType, pageOf } from './prometheus.ts';

/** An address to listen at. */
export interface Place {
  readonly host: string;
  readonly port: number;
}

const portMax = 65_535;
/** Requests at a time; more are refused. */
const connectionsMax = 16;
const requestMs = 10_000;
const textfileMs = 5000;

/** `9464`: of this host alone; `0.0.0.0:9464`, `[::1]:9464`. @param name of the option, for the error. @throws ShoalError `config`. */
export function parsePlace(name: string, text: string): Place {
  const [, bracketed, host, port] = /^(?:(?:\[([0-9a-fA-F:.]+)\]|([^\s:[\]]+)):)?(\d{1,5})$/.exec(text) ?? [];
  if (port !== undefined && Number(port) >= 1 && Number(port) <= portMax)
    return { host: bracketed ?? host ?? '127.0.0.1', port: Number(port) };
  throw new ShoalError('config', `${name} ${text}: expected a port, or an address and a port: 9464, 0.0.0.0:9464, [::1]:9464`);
}

export interface Page {
  readonly type: string;
  text(): Promise<string>;
}

export interface Endpoint {
  close(): void;
}

/** Serves pages by their paths. It does not keep the process alive. @throws (rejects) ShoalError `config` when it cannot listen there. */
export async function servePages(place: Place, pages: Readonly<Record<string, Page>>): Promise<Endpoint> {
  const { createServer } = await import('node:http');
  const server = createServer({ requestTimeout: requestMs, headersTimeout: requestMs }, (request, response) => {
    const page = Object.hasOwn(pages, request.url ?? '') ? pages[request.url ?? ''] : undefined;
    const answer = (status: number, type: string, text: string): void =>
      void response.writeHead(status, { 'content-type': type }).end(text);
    if (page === undefined || request.method !== 'GET') return answer(404, 'text/plain', `there is ${Object.keys(pages).join(', ')}\n`);
    page.text().then(
      (text) => answer(200, page.type, text),
      (thrown: unknown) => answer(500, 'text/plain', `${messageOf(thrown)}\n`),
    );
  });
  server.maxConnections = connectionsMax;
  await listening(server, place);
  server.unref();
  server.on('connection', (socket) => socket.unref());
  return {
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

function listening(server: Server, place: Place): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', (cause: NodeJS.ErrnoException) => {
      const next = cause.code === 'EADDRINUSE' ? 'another process listens there; choose another one' : 'is it an address of this host?';
      reject(new ShoalError('config', `cannot listen on ${place.host}:${place.port} for metrics: ${messageOf(cause)}; ${next}`, { cause }));
    });
    server.listen(place, resolve);
  });
}

interface Prometheus {
  readonly pageOf: typeof pageOf;
  readonly contentType: typeof contentType;
}

/** The page that Prometheus reads. */
export async function metricsPage(samples: () => Promise<readonly Sample[]> | readonly Sample[]): Promise<Page> {
  const prometheus = (await import(pathToFileURL(builtEntry('metrics/prometheus.js')).href)) as Prometheus;
  return { type: prometheus.contentType, text: async () => prometheus.pageOf(await samples()) };
}

/** Writes a page into `folder/name` again and again, whole each time. At the end the file goes: nobody must take old values for new
 *  ones. */
export function writeTextfile(options: { clock: Clock; warn(line: string): void; folder: string; name: string }, page: Page): () => void {
  const { clock, warn, folder, name } = options;
  let isTold = false;
  const write = async (): Promise<void> => {
    try {
      const text = await page.text();
      if (!repeated.isOver) writeFileWhole(folder, name, [text]);
      isTold = false;
    } catch (thrown) {
      if (!isTold) warn(`metrics: ${messageOf(thrown)}; the job goes on`);
      isTold = true;
    }
  };
  const repeated = new RepeatedWrite({ clock, intervalMs: textfileMs, write });
  return () => {
    repeated.end();
    rmSync(join(folder, name), { force: true });
  };
}
