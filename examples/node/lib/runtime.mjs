// Joins the clock, the endpoint and a carrier. Everything with I/O starts here.

import { Attachment } from './carrier/attachment.mjs';
import { AutoCarrier } from './carrier/auto.mjs';
import { HttpClient } from './carrier/http.mjs';
import { LinkCarrier } from './carrier/link-only.mjs';
import { PollCarrier } from './carrier/poll.mjs';
import { ExchangeTime } from './carrier/smoothed.mjs';
import { Alarm, CLOCK } from './clock.mjs';
import { Endpoint } from './endpoint/endpoint.mjs';

const CARRIERS = { auto: AutoCarrier, poll: PollCarrier, link: LinkCarrier };

export class Runtime {
  /**
   * {relay (URL), token, proxy (URL), carrier, name, settings of connections}. Tests pass `client`, `clock` and
   * `endpoint` of their own.
   */
  constructor({ relay, token, proxy, carrier = 'auto', name = '', settings = {}, client, clock = CLOCK, endpoint }) {
    this.client = client ?? new HttpClient({ relay, token, proxy });
    this.clock = clock;
    this.endpoint = endpoint ?? new Endpoint({ settings });
    this.alarm = new Alarm(clock, () => this.tick());
    this.attached = false;
    this.closed = false;
    this.lastTrouble = null;
    const times = new ExchangeTime();
    this.attachment = new Attachment({
      client: this.client,
      clock,
      identity: this.endpoint.identity,
      name,
      pullInterval: this.endpoint.settings.pullInterval,
      times,
      attached: (info, fresh) => this.whenAttached(info, fresh),
      fatal: (why, next) => this.fatal(why, next),
      trouble: (why) => this.trouble(why),
    });
    this.carrier = new CARRIERS[carrier]({
      client: this.client,
      clock,
      endpoint: this.endpoint,
      attachment: this.attachment,
      times,
      wake: () => this.wake(),
      reattach: (stale) => this.reattach(stale),
      fatal: (why, next) => this.fatal(why, next),
      trouble: (why) => this.trouble(why),
    });
    this.ready = new Promise((resolve, reject) => {
      this.resolveReady = resolve;
      this.rejectReady = reject;
    });
    this.ready.catch(() => {});
  }

  get now() {
    return this.clock.now();
  }
  start() {
    this.attachment.attach();
    return this.ready;
  }

  /** Ask the relay for another pull interval (2.7). Each later ATTACH asks for it, too. */
  askPullInterval(pullInterval) {
    this.attachment.pullInterval = pullInterval;
    this.endpoint.interval.ask(pullInterval);
    this.wake();
  }

  trouble(why) {
    this.lastTrouble = why;
    if (process.env.TUNNEL_DEBUG) process.stderr.write(`trouble: ${why}\n`);
  }

  whenAttached(info, fresh) {
    this.attached = true;
    const { now } = this;
    this.endpoint.attachmentBack();
    this.endpoint.attached(info, fresh, now);
    this.carrier.start(info);
    this.resolveReady(info);
    this.wake();
  }

  reattach(stale = false) {
    if (!this.attached || this.closed) return;
    this.attached = false;
    this.endpoint.attachmentLost(this.now);
    this.carrier.stop();
    this.attachment.attach(stale);
    this.wake();
  }

  /** End everything, because no repeat can help: for example, the token is wrong. */
  fatal(why, next) {
    const error = Object.assign(new Error(why), { next });
    this.rejectReady(error);
    this.failed?.(error);
    for (const connection of this.endpoint.connections.values()) connection.die(error);
    this.deliver();
    this.close();
  }

  /** Something has changed: call tick() once, soon. */
  wake() {
    if (this.woken || this.closed) return;
    this.woken = true;
    this.clock.soon(() => {
      this.woken = false;
      this.tick();
    });
  }

  tick() {
    if (this.closed) return;
    this.endpoint.handleTimeout(this.now);
    this.deliver();
    if (this.attached) this.carrier.pump(this.now);
    this.deliver();
    this.alarm.clear();
    const next = this.endpoint.nextTimeout(this.now);
    if (next < Infinity) this.alarm.set(Math.min(60_000, Math.max(1, next - this.now)));
  }

  /** Hand the events of connections to their applications: `connection.app(event)`. */
  deliver() {
    for (const connection of this.endpoint.allConnections()) {
      while (connection.events.length) connection.app?.(connection.events.shift(), connection);
    }
  }

  close() {
    if (this.closed) return;
    this.closed = true;
    if (process.env.TUNNEL_DEBUG)
      process.stderr.write(`${JSON.stringify({ ...this.carrier.counts, discarded: this.endpoint.discarded })}\n`);
    this.alarm.clear();
    this.attachment.stop();
    this.carrier.stop();
    this.client.close();
  }
}
