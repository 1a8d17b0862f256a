// HTTP requests to the relay: 7.0, 7.17, 8.0. A proxy is used for http:// relays only: in absolute form for
// exchanges, and with CONNECT for links.

import http from 'node:http';
import https from 'node:https';

const LONGEST_SILENCE = 120_000; // an attempt without any answer is dropped in the end, whatever the timers say

export class HttpClient {
  constructor({ relay, token, proxy }) {
    this.base = new URL(relay);
    this.path = this.base.pathname.replace(/\/+$/, '');
    this.proxy = proxy ? new URL(proxy) : null;
    this.module = this.base.protocol === 'https:' ? https : http;
    this.agent = new this.module.Agent({ keepAlive: true, maxSockets: 64 });
    this.headers = { 'Tunnel-Role': 'endpoint' };
    if (token) this.headers.Authorization = `Bearer ${token}`;
  }

  get port() {
    return Number(this.base.port) || (this.base.protocol === 'https:' ? 443 : 80);
  }

  /**
   * POST `body` to BASE/exchange; `done(error, {status, headers, body})` is called once.
   * Returns a function that gives up.
   */
  post(body, { fresh = false }, done) {
    const target = this.proxy ?? this.base;
    const path = `${this.path}/exchange`;
    const request = this.module.request({
      method: 'POST',
      host: target.hostname,
      port: this.proxy ? Number(target.port) || 80 : this.port,
      path: this.proxy ? `${this.base.origin}${path}` : path,
      agent: fresh ? false : this.agent, // 7.5: a repeat takes a new connection
      headers: {
        ...this.headers,
        Host: this.base.host,
        'Content-Type': 'application/octet-stream',
        'Content-Length': body.length,
      },
    });
    let over = false;
    const finish = (error, response) => {
      if (!over) {
        over = true;
        done(error, response);
      }
    };
    request.setNoDelay(true);
    request.setTimeout(LONGEST_SILENCE, () => request.destroy(new Error('no answer')));
    request.on('error', (error) => finish(error));
    request.on('response', (response) => collect(response, finish));
    request.end(body);
    return () => {
      over = true;
      request.destroy();
    };
  }

  /**
   * GET BASE/link with an upgrade: `done(error, {status, headers, body, socket, head})` is called once.
   * Returns a function that gives up.
   */
  upgrade(done) {
    let over = false;
    let current = null;
    const finish = (error, response) => {
      if (over) return response?.socket?.destroy();
      over = true;
      return done(error, response);
    };
    const open = (socket) => {
      if (over) return void socket?.destroy();
      current = this.module.request({
        method: 'GET',
        host: this.base.hostname,
        port: this.port,
        path: `${this.path}/link`,
        agent: false,
        ...(socket ? { createConnection: () => socket } : {}),
        headers: { ...this.headers, Host: this.base.host, Connection: 'Upgrade', Upgrade: 'tunnel-link/1' },
      });
      current.setTimeout(15_000, () => current.destroy(new Error('no answer to the upgrade')));
      current.on('error', (error) => finish(error));
      current.on('response', (response) => collect(response, finish));
      current.on('upgrade', (response, upgraded, head) => {
        upgraded.setTimeout(0);
        upgraded.setNoDelay(true);
        finish(null, { status: 101, headers: response.headers, socket: upgraded, head });
      });
      current.end();
    };
    if (this.proxy) current = this.tunnelThroughProxy(open, finish);
    else open();
    return () => {
      over = true;
      current?.destroy();
    };
  }

  tunnelThroughProxy(open, finish) {
    const authority = `${this.base.hostname}:${this.port}`;
    const request = http.request({
      method: 'CONNECT',
      host: this.proxy.hostname,
      port: Number(this.proxy.port) || 80,
      path: authority,
      agent: false,
      headers: { Host: authority },
    });
    request.on('error', (error) => finish(error));
    request.on('connect', (response, socket) => {
      if (response.statusCode === 200) open(socket);
      else {
        socket.destroy();
        finish(null, { status: response.statusCode, headers: response.headers, body: Buffer.alloc(0) });
      }
    });
    request.end();
    return request;
  }

  close() {
    this.agent.destroy();
  }
}

/** 7.1: bodies are complete before they are looked at. */
function collect(response, finish) {
  const parts = [];
  response.on('data', (part) => parts.push(part));
  response.on('end', () =>
    finish(response.complete ? null : new Error('the response was cut off'), {
      status: response.statusCode,
      headers: response.headers,
      body: Buffer.concat(parts),
    }),
  );
  response.on('error', (error) => finish(error));
}
