// One exchange, repeated until its answer comes: 7.5, 7.8, 7.9.

import { Alarm } from '../clock.mjs';
import { remask } from '../wire/envelope.mjs';
import { RESULT, interpret } from './response.mjs';

const OLDEST_AGES = [8000, 16_000, 30_000];
const LEAST_INTERVAL = 1000;
const LONGEST_INTERVAL = 30_000;
const INTERVAL_PER_BYTE = 0.125; // ms
const MOST_REFUSALS = 8;
const SUSPICIOUS = 4; // unexplained failures after which every second repeat asks for a small answer (7.16)
const between = (low, high) => low + Math.random() * (high - low);

export class RepeatedRequest {
  /**
   * {client, clock, times, body, smallBody, maxOpen, deadline (ms), attached, givesUp, isAnswer(result),
   * isFailure(result), done(result, request, attempt), failed(why, request, unexplained)}
   *
   * `attached`: the endpoint has been attached, so a refusal is not final. `givesUp`: the eighth refusal ends the
   * request. `smallBody()` is the body with a small answer limit. `done` is called with the first result that is not a
   * failure, and `failed` for each failure. `smallBody`, `isFailure` and `failed` may be missing.
   */
  constructor(options) {
    Object.assign(this, options);
    this.open = []; // attempts without a response, oldest first
    this.sent = 0;
    this.failures = 0;
    this.unexplained = 0; // 7.16
    this.refusals = 0;
    this.reported = 0; // number of reported failures of newest attempts, from which the next pause follows
    this.doublings = 0; // of T
    this.missed = false; // a deadline has passed without an answer
    this.notBefore = 0;
    this.oldestGivenUp = 0;
    this.over = false;
    this.dueAt = 0;
    this.alarm = new Alarm(this.clock, () => this.due());
    this.startedAt = this.clock.now();
    this.launch();
  }

  /** `reported`: the attempt follows a failure before the deadline. */
  launch(reported = false) {
    if (this.over) return;
    this.makeRoom();
    this.sent += 1;
    if (this.sent > 2 && !reported) this.doublings += 1;
    const attempt = { index: this.sent, at: this.clock.now(), small: this.asksForLittle() };
    this.newest = attempt;
    this.open.push(attempt);
    attempt.cancel = this.client.post(this.bodyOf(attempt), { fresh: this.sent > 1 }, (error, response) =>
      this.responded(attempt, interpret(error, response)),
    );
    this.schedule(this.sent === 1 ? this.deadline : this.nextInterval());
  }

  asksForLittle() {
    if (!this.smallBody || this.unexplained < SUSPICIOUS) return false;
    return !this.newest.small;
  }

  /** 7.9: from the second failure on, and after a refusal, each repeat is masked with a new byte. */
  bodyOf(attempt) {
    const body = attempt.small ? this.smallBody() : this.body;
    return this.failures >= 2 || this.refusals ? remask(body, 1 + Math.floor(Math.random() * 255)) : body;
  }

  /** T of 7.8, before any doubling. */
  get interval() {
    const { srtt } = this.times;
    if (srtt === null) return LEAST_INTERVAL;
    return Math.max(LEAST_INTERVAL, Math.min(LONGEST_INTERVAL, (4 * srtt) / (this.maxOpen - 1)));
  }

  nextInterval() {
    const most = Math.min(LONGEST_INTERVAL, this.body.length * INTERVAL_PER_BYTE);
    const doubled = this.interval * 2 ** this.doublings;
    return between(0.75, 1) * Math.max(this.interval, Math.min(doubled, most));
  }

  makeRoom() {
    if (this.open.length < this.maxOpen) return;
    const limit = OLDEST_AGES[Math.min(this.oldestGivenUp, OLDEST_AGES.length - 1)];
    if (this.clock.now() - this.open[0].at >= limit) {
      this.open.shift().cancel();
      this.oldestGivenUp += 1;
    } else this.open.splice(1, 1)[0].cancel(); // the second oldest
  }

  schedule(delay) {
    const now = this.clock.now();
    this.dueAt = Math.max(now + delay, this.notBefore);
    this.alarm.set(this.dueAt - now);
  }

  due() {
    const silent = this.open.includes(this.newest);
    if (silent) {
      this.missed = true;
      this.fail('silence', true);
    }
    this.launch(!silent);
  }

  fail(why, unexplained) {
    this.failures += 1;
    if (unexplained) this.unexplained += 1;
    this.failed?.(why, this, unexplained);
  }

  responded(attempt, result) {
    if (this.over) return;
    this.open = this.open.filter((one) => one !== attempt);
    const foreign = result.kind === RESULT.ANSWER && !this.isAnswer(result); // 7.5: ignored
    if (foreign) this.fail('an answer to another request', true);
    else if (result.kind === RESULT.REFUSAL && this.attached) {
      if (this.refused(result, attempt)) return;
    } else if (result.kind === RESULT.FAILURE || this.isFailure?.(result)) this.failedWith(result);
    else {
      this.finish(result, attempt);
      return;
    }
    if (this.over || attempt !== this.newest) return;
    this.reported += 1;
    const pause = this.reported === 1 ? 0 : between(0.25, 1) * Math.min(1000, 50 * 2 ** (this.reported - 2));
    this.schedule(pause);
  }

  failedWith(result) {
    this.notBefore = Math.max(this.notBefore, this.clock.now() + (result.retryAfter ?? 0));
    this.fail(result.why, result.unexplained);
  }

  /** An intermediary has refused the request. Returns whether that was once too often. */
  refused(result, attempt) {
    this.refusals += 1;
    this.failedWith(result);
    if (this.over || !this.givesUp || this.refusals < MOST_REFUSALS) return this.over;
    this.finish(result, attempt);
    return true;
  }

  finish(result, attempt) {
    this.stop();
    this.done(result, this, attempt);
  }

  /** Evidence says that the answer is lost (7.7): repeat once, without waiting for the deadline. */
  repeatNow() {
    if (this.over) return;
    const wait = this.notBefore - this.clock.now();
    if (wait > 0) this.schedule(wait);
    else this.launch();
  }

  /** The relay has answered another exchange by an attempt that left at `sentAt` (7.8). */
  pathWorks(sentAt) {
    if (this.over || !this.missed || sentAt - this.newest.at <= this.interval) return;
    const now = this.clock.now();
    if (this.dueAt - now > this.times.soon) this.schedule(this.times.soon);
  }

  /** Give all attempts up: the answer has come, or is not wanted any more. */
  stop() {
    this.over = true;
    this.alarm.clear();
    for (const attempt of this.open) attempt.cancel();
    this.open = [];
  }
}
