// One exchange, repeated until its answer comes: 7.5, 7.8, 7.9.

import { remask } from '../wire/envelope.mjs';
import { RESULT, interpret } from './response.mjs';

const OLDEST_AGES = [8000, 16_000, 30_000];
const between = (low, high) => low + Math.random() * (high - low);

export class RepeatedRequest {
  /**
   * {client, body, maxOpen, deadline (ms), smoothed() -> SRTT or null, isAnswer(result), isFailure(result),
   * done(result, request), failed(why, request)}
   * `done` is called with the first result that is not a failure, and `failed` for each failure. `isFailure` and
   * `failed` may be missing.
   */
  constructor(options) {
    Object.assign(this, options);
    this.open = []; // attempts without a response, oldest first
    this.sent = 0;
    this.failures = 0;
    this.reported = 0; // number of reported failures of newest attempts, from which the next pause follows
    this.notBefore = 0;
    this.oldestGivenUp = 0;
    this.over = false;
    this.timer = null;
    this.startedAt = performance.now();
    this.launch();
  }

  launch() {
    if (this.over) return;
    this.makeRoom();
    const now = performance.now();
    const attempt = { at: now };
    // 7.9: from the second failure on, each repeat is masked with a new byte
    const body = this.failures >= 2 ? remask(this.body, 1 + Math.floor(Math.random() * 255)) : this.body;
    this.newest = attempt;
    this.open.push(attempt);
    this.sent += 1;
    attempt.cancel = this.client.post(body, { fresh: this.sent > 1 }, (error, response) =>
      this.responded(attempt, interpret(error, response)),
    );
    this.schedule(this.sent === 1 ? this.deadline : this.laterInterval());
  }

  laterInterval() {
    const srtt = this.smoothed() ?? 1000;
    return between(0.75, 1) * Math.max(1000, Math.min(30_000, (4 * srtt) / (this.maxOpen - 1)));
  }

  makeRoom() {
    const limit = OLDEST_AGES[Math.min(this.oldestGivenUp, OLDEST_AGES.length - 1)];
    if (this.open.length && performance.now() - this.open[0].at >= limit && this.open.length >= this.maxOpen) {
      this.open.shift().cancel();
      this.oldestGivenUp += 1;
    }
    if (this.open.length >= this.maxOpen) this.open.splice(1, 1)[0].cancel(); // the second oldest
  }

  schedule(delay) {
    clearTimeout(this.timer);
    const wait = Math.max(delay, this.notBefore - performance.now());
    this.timer = setTimeout(
      () => {
        if (this.open.includes(this.newest)) this.fail('silence'); // its deadline has passed
        this.launch();
      },
      Math.max(0, wait),
    );
  }

  fail(why) {
    this.failures += 1;
    this.failed?.(why, this);
  }

  responded(attempt, result) {
    if (this.over) return;
    this.open = this.open.filter((one) => one !== attempt);
    const foreign = result.kind === RESULT.ANSWER && !this.isAnswer(result); // 7.5: ignored
    if (result.kind !== RESULT.FAILURE && !foreign && !this.isFailure?.(result)) {
      this.stop();
      this.done(result, this);
      return;
    }
    if (!foreign) this.notBefore = Math.max(this.notBefore, performance.now() + (result.retryAfter ?? 0));
    this.fail(result.why ?? 'an answer to another request');
    if (attempt !== this.newest) return;
    this.reported += 1;
    const pause = this.reported === 1 ? 0 : between(0.25, 1) * Math.min(1000, 50 * 2 ** (this.reported - 2));
    this.schedule(pause);
  }

  /** Evidence says that the answer is lost (7.7). */
  repeatNow() {
    if (!this.over) this.schedule(0);
  }

  /** Give all attempts up: the answer has come, or is not wanted any more. */
  stop() {
    this.over = true;
    clearTimeout(this.timer);
    for (const attempt of this.open) attempt.cancel();
    this.open = [];
  }
}
