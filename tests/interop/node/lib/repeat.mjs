// Something that is sent, and sent again with backoff, until it is answered. Times are milliseconds.
const LONGEST_PAUSE = 60_000;

export class Repeat {
  constructor() { this.stop(); }
  stop() { Object.assign(this, { running: false, owed: false, at: Infinity, since: null }); }
  /** Owe the first one now. The pause after it is `pause`, and each further one `factor` times as long. */
  start(pause, { factor = 2, since = null } = {}) {
    Object.assign(this, { running: true, owed: true, at: Infinity, pause, factor, since });
  }
  /** The first one is owed only after the pause. */
  startLater(pause, now) { this.start(pause); Object.assign(this, { owed: false, at: now + pause }); }
  sent(now) { // `since`: since when it is unanswered
    Object.assign(this, { owed: false, since: this.since ?? now, at: now + this.pause });
    this.pause = Math.min(LONGEST_PAUSE, this.pause * this.factor);
  }
  /** What carried the last one was given up (4.10). */
  lost() { this.owed = this.running; }
  get next() { return this.owed ? Infinity : this.at; }
  handleTimeout(now) { if (this.at <= now) this.lost(); }
}
