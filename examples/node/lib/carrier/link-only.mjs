// The carrier "link": a link and nothing else. Where no link opens, it ends with an error instead of going on with
// exchanges, as the carrier "auto" does.

import { Alarm } from '../clock.mjs';
import { openLink } from './link.mjs';
import { interpret, RESULT } from './response.mjs';

const NO_RECEIPT = 10_000; // 8.0
const QUIET = 15_000; // after this time without a receipt a NOOP asks for one (8.6)
const CHECK = 1000;
const LONGEST_PAUSE = 5000;

export class LinkCarrier {
  /** The same options as PollCarrier. */
  constructor(options) {
    Object.assign(this, options);
    this.link = null;
    this.cancel = null;
    this.failures = 0;
    this.counts = { links: 0 };
    this.watch = new Alarm(this.clock, () => this.check());
    this.retry = new Alarm(this.clock, () => this.open());
  }

  get busy() {
    return (this.link?.outstanding.length ?? 0) > 0;
  }

  start(info) {
    this.stop();
    this.info = info;
    this.endpoint.settings.lanes = 1; // 4.8: a link keeps the order as one lane does
    this.open();
  }

  stop() {
    this.retry.clear();
    this.watch.clear();
    this.cancel?.();
    this.cancel = null;
    this.info = null;
    const { link } = this;
    this.link = null;
    link?.end('the endpoint gives it up');
  }

  open() {
    openLink(this);
  }

  notOpened(error, response) {
    const result = interpret(error, response);
    const passing = error || response.status >= 500 || result.retryAfter;
    if ((passing && result.kind === RESULT.FAILURE) || result.kind === RESULT.UNKNOWN || result.kind === RESULT.STALE)
      return this.again(result.why, result);
    return this.fatal(`no link opens on this path (${result.why ?? `HTTP ${response.status}`})`, 'use --carrier auto');
  }

  opened() {
    this.counts.links += 1;
    this.failures = 0;
    this.receiptAt = this.clock.now();
    this.watch.set(CHECK);
    this.wake();
  }

  receipted() {
    this.receiptAt = this.clock.now();
  }

  /** A link is over. Another one is opened. */
  ended(link, why, result) {
    if (this.link === link) this.link = null;
    this.watch.clear();
    if (this.info) this.again(why, result);
  }

  again(why, result) {
    this.trouble(why);
    if (!this.info) return;
    if (result?.kind === RESULT.UNKNOWN || result?.kind === RESULT.STALE)
      return void this.reattach(result.kind === RESULT.STALE);
    if (result?.kind === RESULT.FINAL) return void this.fatal(why);
    const pause =
      this.failures === 0 ? 0 : Math.min(LONGEST_PAUSE, 100 * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    this.retry.set(Math.max(pause, result?.retryAfter ?? 0));
    this.wake();
  }

  /** 8.0: a link on which a batch has had no receipt for 10 s is closed. */
  check() {
    const { link } = this;
    const now = this.clock.now();
    const [oldest] = link.outstanding;
    if (oldest && now - oldest.at > NO_RECEIPT) return link.end('no receipt for 10 s');
    if (link.spent) return link.end('the numbers of the link have ended');
    if (!oldest && now - this.receiptAt > QUIET) link.sendNoop(now);
    return this.watch.set(CHECK);
  }

  pump(now) {
    this.link?.pump(now);
  }
}
