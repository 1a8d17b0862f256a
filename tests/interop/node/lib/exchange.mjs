// One HTTP request to the relay, repeated until its answer comes: 7.0, 7.5, 7.8 to 7.10.
import http from 'node:http';
import https from 'node:https';
import { KIND, decodeBody, hasMagic, remask } from './wire.mjs';
const REFUSALS = [401, 403, 415, 301, 302, 303, 307, 308];
const CODES = [, 'unknown', 'failure', 'stale', 'too large', 'failure', 'final', 'final', 'final']; // 7.10
const [LEAST_INTERVAL, LONGEST_INTERVAL] = [1000, 8000];
export const LEAST_BODY = 16 * 1024; // 413 is a failure for such a body (7.9 says 4 KiB)
const between = (low, high) => low + Math.random() * (high - low);

export class HttpClient {
  constructor(relay, token) {
    this.url = new URL(relay);
    this.module = this.url.protocol === 'https:' ? https : http;
    this.agent = new this.module.Agent({ keepAlive: true, maxSockets: 64 });
    this.headers = { 'Tunnel-Role': 'endpoint', ...(token && { Authorization: `Bearer ${token}` }) };
    this.srtt = null; // of exchanges (7.8)
  }
  get deadline() { return this.srtt === null ? 1000 : Math.min(30_000, Math.max(500, 4 * this.srtt)); }
  sample(time) { this.srtt = this.srtt === null ? time : this.srtt + (time - this.srtt) / 8; }
  /** Start a request below the relay's URL. `done(result)` is called with what its response means. */
  request(method, name, { headers = {}, agent = this.agent, body }, done) {
    const { hostname, port, pathname } = this.url;
    const place = { host: hostname.replace(/^\[|\]$/g, ''), port, path: `${pathname.replace(/\/+$/, '')}/${name}` };
    const all = { method, ...place, agent, headers: { ...this.headers, ...headers } };
    const failed = (error) => done({ kind: 'failure', why: error.message });
    const request = this.module.request(all, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part)).on('error', failed);
      response.on('end', () => done(interpret(response, Buffer.concat(parts))));
    });
    request.on('error', failed).end(body);
    return request;
  }
}

/** What a whole response means (7.9, 7.10): {kind, why, wait (ms)}; of an answer, also {of, flags, value}. */
export function interpret({ statusCode, headers }, body) {
  const after = headers['retry-after'] ?? '';
  const pause = /^\d+$/.test(after) ? Number(after) * 1000 : statusCode === 429 ? 1000 : 0;
  const kinds = { 407: 'final', 413: 'too large' };
  const byHttp = REFUSALS.includes(statusCode) ? 'refusal' : (kinds[statusCode] ?? 'failure');
  const why = `the relay, or a proxy before it, answers with HTTP ${statusCode}`;
  const plain = { kind: byHttp, why, wait: Math.min(pause, statusCode === 429 ? 30_000 : 2000) };
  if ((headers['content-encoding'] ?? 'identity') !== 'identity' || !hasMagic(body)) return plain;
  try {
    const { kind, flags, value } = decodeBody(body);
    if (kind === KIND.ANSWER || kind === KIND.ATTACHED) return { kind: 'answer', of: kind, flags, value };
    if (kind !== KIND.STATUS) return plain;
    const wait = Math.min(30_000, Math.max(pause, value.retryAfter));
    const means = CODES[value.code] ?? (byHttp === 'refusal' ? 'final' : byHttp);
    return { kind: means, why: `the relay says: ${value.text}`, wait };
  } catch (error) {
    return error.foreign ? { kind: 'final', why: error.message } : plain;
  }
}

export class RepeatedRequest {
  /** {client, body, maxOpen, hold, attached, isPush, isAnswer(result), trouble(why), done(result)}: done comes once. */
  constructor(options) {
    Object.assign(this, { hold: 0, attached: true, isPush: false, ...options });
    this.open = []; // requests without a response, oldest first
    Object.assign(this, { sent: 0, failures: 0, early: 0, notBefore: 0 }); // `early`: failures before the deadline
    this.launch();
  }
  launch() {
    if (this.open.length >= this.maxOpen) this.open.splice(1, 1)[0].destroy(); // 7.8: the second oldest
    this.sent += 1;
    const startedAt = performance.now();
    const body = this.failures >= 2 ? remask(this.body, 1 + Math.floor(Math.random() * 255)) : this.body; // 7.9
    const headers = { 'Content-Type': 'application/octet-stream', 'Content-Length': body.length };
    const more = { headers, body, ...(this.sent > 1 && { agent: false }) }; // 7.5: a repeat takes a new connection
    const request = this.client.request('POST', 'exchange', more, (result) => {
      if (this.over || !this.open.includes(request)) return;
      this.open.splice(this.open.indexOf(request), 1);
      this.responded(result, startedAt, request);
    });
    this.open.push((this.newest = request));
    const interval = Math.min(LONGEST_INTERVAL, LEAST_INTERVAL * 2 ** Math.max(0, this.sent - 2 - this.early));
    this.schedule(this.sent === 1 ? this.client.deadline + this.hold : between(0.75, 1) * interval, 'no answer yet');
  }
  schedule(delay, failure = null) {
    clearTimeout(this.timer);
    const repeat = () => { if (failure) this.fail(failure); this.launch(); };
    this.timer = setTimeout(repeat, Math.max(delay, this.notBefore - performance.now()));
  }
  fail(why) { this.failures += 1; this.trouble(why); }
  responded(result, startedAt, request) {
    const { kind, wait = 0, why = 'an answer to another request' } = result;
    const foreign = kind === 'answer' && !this.isAnswer(result); // 7.5
    const small = kind === 'too large' && (!this.isPush || this.body.length <= LEAST_BODY);
    if (kind === 'failure' || foreign || small || (kind === 'refusal' && this.attached)) {
      this.notBefore = Math.max(this.notBefore, performance.now() + wait);
      this.fail(why);
      if (request !== this.newest) return undefined;
      this.early += 1;
      return this.schedule(this.early === 1 ? 0 : between(0.25, 1) * Math.min(1000, 50 * 2 ** (this.early - 2)));
    }
    this.stop();
    if (kind === 'answer' && !this.hold) this.client.sample(performance.now() - startedAt);
    return this.done(result);
  }
  stop() { this.over = true; clearTimeout(this.timer); for (const request of this.open) request.destroy(); }
}
