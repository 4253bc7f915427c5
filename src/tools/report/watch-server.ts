/** `shoal run --watch`: the page of a run that goes on, on loopback, for whoever has the token.
 *
 *      browser ── GET /?token=…      ─▶ the page, with what ranks have written so far
 *              ── GET /data?token=…  ─▶ the same as JSON, when it has changed since `If-None-Match`
 *
 *  A page of another origin could ask, too: whatever does not say the token, comes from another origin, or speaks to another name than
 *  ours (a name that an attacker has pointed at loopback) is refused before anything is read. */
import { createHash, timingSafeEqual } from 'node:crypto';
import { readdirSync, statSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { within, type Clock } from '../../base/clock.ts';
import { messageOf, ShoalError } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import type { ReportData } from './data/report-data.ts';
import { reportPage } from './page.ts';
import { isRunFile } from './read-folder.ts';

export interface WatchOptions {
  readonly folder: string;
  readonly clock: Clock;
  readonly random: Random;
  /** Reads the folder as it is now. */
  readonly read: () => ReportData;
}

const host = '127.0.0.1';
/** A browser that has asked this recently is watching; at the end it gets `lastLookMs` to see it. */
const recentMs = 5000;
const lastLookMs = 3000;
const headers = {
  'Cache-Control': 'no-store',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
};

export class WatchServer {
  readonly #options: WatchOptions;
  readonly #server: Server;
  readonly #token: string;
  #port = 0;
  #askedMs = -Infinity;
  /** The state that was shown last. */
  #shown = '';
  #onShown: () => void = () => {};
  #last: { readonly state: string; readonly data: ReportData } | undefined;

  private constructor(options: WatchOptions) {
    this.#options = options;
    this.#token = Buffer.from(options.random.bytes(24)).toString('base64url');
    this.#server = createServer({ maxHeaderSize: 16_384, requestTimeout: 10_000 }, (request, response) => this.#answer(request, response));
    this.#server.maxConnections = 32;
    // The job decides how long there is something to see.
    this.#server.unref();
  }

  /** @throws ShoalError `system` when there is no port. */
  static async open(options: WatchOptions): Promise<WatchServer> {
    const watch = new WatchServer(options);
    await new Promise<void>((resolve, reject) => {
      watch.#server.once('error', (error) => reject(new ShoalError('system', `--watch cannot listen on ${host}: ${error.message}`)));
      watch.#server.listen(0, host, resolve);
    });
    watch.#port = (watch.#server.address() as AddressInfo).port;
    return watch;
  }

  /** The address for the browser; its token is all that a viewer needs. */
  get url(): string {
    return `http://${host}:${this.#port}/?token=${this.#token}`;
  }

  /** Lets who watches see the end first. */
  async close(): Promise<void> {
    const { clock, folder } = this.#options;
    const end = stateOf(folder);
    if (clock.now() - this.#askedMs < recentMs && this.#shown !== end) {
      const seen = new Promise<void>((resolve) => {
        this.#onShown = () => this.#shown === end && resolve();
      });
      await within(clock, lastLookMs, seen, () => undefined);
    }
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const url = URL.canParse(request.url ?? '', this.url) ? new URL(request.url ?? '', this.url) : undefined;
    const refused = url === undefined ? 'no address' : this.#refusal(request, url);
    if (url === undefined || refused !== undefined) return send(response, { status: 403, text: `refused: ${refused}\n` });
    if (url.pathname !== '/' && url.pathname !== '/data') return send(response, { status: 404, text: 'there is / and /data\n' });
    if (request.method !== 'GET') return send(response, { status: 405, text: 'GET only\n' });
    try {
      const { state, data } = this.#data();
      if (url.pathname === '/') return send(response, { status: 200, type: 'text/html', text: reportPage(data, { live: true }) });
      this.#askedMs = this.#options.clock.now();
      if (request.headers['if-none-match'] === state) return send(response, { status: 304, text: '' });
      response.once('finish', () => {
        this.#shown = state;
        this.#onShown();
      });
      send(response, { status: 200, type: 'application/json', text: JSON.stringify(data), state });
    } catch (thrown) {
      send(response, { status: 500, text: `${messageOf(thrown)}\n` });
    }
  }

  #refusal(request: IncomingMessage, url: URL): string | undefined {
    const own = `${host}:${this.#port}`;
    const { host: named, origin, 'sec-fetch-site': site } = request.headers;
    if (named !== own) return `this is ${own}`;
    if (origin !== undefined && origin !== `http://${own}`) return 'another origin';
    // A link that was followed, or typed, is `none`; pages of ours are `same-origin`.
    if (site !== undefined && site !== 'same-origin' && site !== 'none') return 'another site';
    return isSame(url.searchParams.get('token') ?? '', this.#token)
      ? undefined
      : 'wrong token; open the address that shoal run has printed';
  }

  /** Read again only when ranks have written. */
  #data(): { readonly state: string; readonly data: ReportData } {
    const state = stateOf(this.#options.folder);
    if (this.#last?.state !== state) this.#last = { state, data: this.#options.read() };
    return this.#last;
  }
}

/** Takes as long whatever is wrong. */
function isSame(given: string, token: string): boolean {
  const [a, b] = [given, token].map((text) => createHash('sha256').update(text).digest());
  return timingSafeEqual(a, b);
}

/** Names, sizes and times of what ranks have written. */
function stateOf(folder: string): string {
  const names = readdirSync(folder).filter(isRunFile);
  const files = names.map((name) => {
    const stat = statSync(join(folder, name), { throwIfNoEntry: false });
    return `${name} ${stat?.size} ${stat?.mtimeMs}`;
  });
  return `"${createHash('sha256').update(files.sort().join('\n')).digest('base64url')}"`;
}

interface Answer {
  readonly status: number;
  readonly text: string;
  /** Default: text/plain. */
  readonly type?: string;
  readonly state?: string;
}

function send(response: ServerResponse, { status, text, type = 'text/plain', state }: Answer): void {
  const tag = state === undefined ? {} : { ETag: state };
  response.writeHead(status, { ...headers, ...tag, 'Content-Type': `${type}; charset=utf-8` });
  response.end(text);
}
