// The link as a road beside exchanges (8.6): when it is tried, when it is doubted, and when it rests.

import { Alarm } from '../clock.mjs';
import { openLink } from './link.mjs';
import { interpret } from './response.mjs';

const LEAST_TRY = 3000;
const LEAST_PATIENCE = 1000;
const MOST_PATIENCE = 8000;
const NO_RECEIPT = 10_000;
const FIRST_NOOP = 1000;
const QUIET = 15_000;
const FIRST_REST = 1000;
const FIRST_REST_AFTER_USE = 100;
const LONGEST_REST = 600_000;
const GOOD_USE = 60_000;
const AFTER_REATTACH = 2000;
const LEAST_CHECK = 10;
const CHECK_TURNS = 100;
const CAREFUL = 600_000;

export class Road {
  /** {client, clock, endpoint, attachment, times, exchanges (the carrier beside the road), wake(), trouble(why)} */
  constructor(options) {
    Object.assign(this, options);
    this.info = null;
    this.link = null;
    this.cancel = null; // the try that runs
    this.proven = false;
    this.doubted = false;
    this.wasUsed = false;
    this.locked = false; // a proxy has asked for a password: every further try might lock an account (7.9)
    this.rest = FIRST_REST;
    this.carefulUntil = 0; // a try has kept an exchange waiting
    this.noHold = false; // no pull may be held, because a try runs or is about to
    this.counts = { links: 0, doubts: 0 };
    this.retry = new Alarm(this.clock, () => this.open());
    this.limit = new Alarm(this.clock, () => this.tooLate('the link does not answer'));
    this.turns = new Alarm(this.clock, () => this.checkTurns());
    this.watch = new Alarm(this.clock, () => this.check());
  }

  /** The link that carries everything at present, or null. */
  get usable() {
    return this.proven && !this.doubted ? this.link : null;
  }

  /** The endpoint has attached, perhaps again; then it tries the road again at a random time. */
  start(info) {
    this.stop();
    this.info = info;
    if (this.locked) return;
    if (this.wasUsed) this.retry.set(Math.random() * AFTER_REATTACH);
    else this.open();
  }

  stop() {
    this.info = null;
    this.endTry();
    for (const alarm of [this.retry, this.watch]) alarm.clear();
    this.cancel?.();
    this.cancel = null;
    this.link?.end('the endpoint gives it up');
  }

  // --- a try ---

  /** Whether requests take turns on this path: then a try begins only when no pull is held. */
  get careful() {
    const now = this.clock.now();
    return now < this.carefulUntil || !this.exchanges.held.allowed(now);
  }

  open() {
    this.noHold = this.careful;
    if (this.noHold && this.exchanges.holding) {
      this.retry.set(CHECK_TURNS);
      return;
    }
    this.triedAt = this.clock.now();
    this.turns.set(CHECK_TURNS);
    this.limit.set(Math.max(LEAST_TRY, 4 * (this.times.srtt ?? 0)));
    openLink(this);
  }

  /** Not every proxy lets an upgrade through. Only the answers to exchanges have consequences (8.0). */
  notOpened(error, response) {
    const result = interpret(error, response);
    this.locked = response?.status === 407;
    this.failed(result.why ?? 'no upgrade', result.retryAfter ?? 0);
  }

  /** A try is given up when an exchange has to wait for it. */
  checkTurns() {
    const now = this.clock.now();
    if (now - this.exchanges.waitingSince(this.triedAt) < this.times.longWait) return this.turns.set(CHECK_TURNS);
    this.carefulUntil = now + CAREFUL;
    return this.tooLate('the link takes the turn of an exchange');
  }

  endTry() {
    this.limit.clear();
    this.turns.clear();
    this.noHold = false;
  }

  tooLate(why) {
    this.cancel?.();
    this.cancel = null;
    if (this.link) this.link.end(why);
    else this.failed(why);
  }

  opened() {
    this.endTry();
    this.proven = true;
    this.doubted = false;
    this.wasUsed = true;
    this.counts.links += 1;
    const now = this.clock.now();
    this.openedAt = now;
    this.receiptAt = now;
    this.waitingSince = null; // since when the next receipt has been missing
    this.patience = null; // how long to wait for it before the next doubt, once there has been one
    this.watch.set(FIRST_NOOP);
    this.wake();
  }

  ended(link, why) {
    if (this.link === link) this.link = null;
    this.watch.clear();
    const wasProven = this.proven;
    this.proven = false;
    this.doubted = false;
    if (!this.info) return;
    const now = this.clock.now();
    if (wasProven && (now - this.openedAt >= GOOD_USE || this.counts.links === 1)) this.rest = FIRST_REST_AFTER_USE;
    this.failed(why);
  }

  /** The road rests before the next try. */
  failed(why, asked = 0) {
    this.endTry();
    this.trouble(why);
    if (!this.info || this.locked) return;
    this.retry.set(Math.max(this.rest, asked));
    this.rest = Math.min(LONGEST_REST, this.rest * 2);
    this.wake();
  }

  // --- receipts ---

  pump(now) {
    const link = this.usable;
    if (!link) return;
    link.pump(now);
    this.noteWaiting(now);
  }

  noteWaiting(now) {
    if (!this.link.outstanding.length || this.waitingSince !== null) return;
    this.waitingSince = now;
    this.check();
  }

  receipted(link) {
    const now = this.clock.now();
    this.receiptAt = now;
    this.waitingSince = link.outstanding.length ? now : null;
    if (this.doubted) {
      this.doubted = false;
      this.patience = Math.min(MOST_PATIENCE, this.patienceNow * 2);
      this.wake();
    }
    this.check();
  }

  get patienceNow() {
    const usual = Math.min(MOST_PATIENCE, Math.max(LEAST_PATIENCE, 4 * (this.times.srtt ?? 0)));
    return Math.max(usual, this.patience ?? 0);
  }

  /** Act on what is due by now, and look again when the next thing is. */
  check() {
    const { link } = this;
    const now = this.clock.now();
    if (link.spent) return link.end('the numbers of the link have ended');
    if (this.waitingSince === null) {
      const at = link.sent ? this.receiptAt + QUIET : this.openedAt + FIRST_NOOP;
      if (at > now) return this.lookAt(at, now);
      link.sendNoop(now);
      this.waitingSince = now;
    }
    if (now - this.waitingSince >= NO_RECEIPT) return link.end('no receipt for 10 s');
    const doubtAt = this.waitingSince + this.patienceNow;
    if (!this.doubted && doubtAt <= now) this.doubt(link);
    return this.lookAt(this.doubted ? this.waitingSince + NO_RECEIPT : doubtAt, now);
  }

  lookAt(at, now) {
    this.watch.set(Math.max(LEAST_CHECK, at - now));
  }

  /** Exchanges carry everything, until a receipt comes after all. */
  doubt(link) {
    this.doubted = true;
    this.counts.doubts += 1;
    this.trouble('the link gives no receipts');
    link.giveUp();
    this.wake();
  }
}
