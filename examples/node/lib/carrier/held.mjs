// Whether a pull may be held: a path may carry so few requests at once that a push waits until a hold ends (7.15).

const JUST = 50; // ms, and half of a long wait: the document does not say how long ago "just" is
const PROOFS = 2;
const FIRST_REST = 60_000;
const LONGEST_REST = 600_000;
const FIRST_PAUSE = 100; // between pulls while none is held; 7.15 begins with 50 ms
const LONGEST_PAUSE = 1000;

export class HeldPulls {
  constructor(times) {
    this.times = times;
    this.waited = 0; // successive exchanges that had to wait until a hold ended
    this.last = null; // the last hold that ended: {from, until}
    this.rest = FIRST_REST;
    this.restUntil = 0;
    this.pause = FIRST_PAUSE;
  }

  allowed(now) {
    return now >= this.restUntil;
  }

  /** A pull that left at `from` was held until now. */
  ended(from, now) {
    this.last = { from, until: now };
  }

  /** An exchange without a hold that left at `from` was answered now. */
  answered(from, now) {
    if (!this.allowed(now)) return; // several exchanges may have waited for the same hold
    const { last } = this;
    const { longWait } = this.times;
    const behind = last && last.from <= from && last.until >= from && now - last.until <= JUST + longWait / 2;
    this.waited = behind && now - from >= longWait ? this.waited + 1 : 0;
    if (this.waited < PROOFS) return;
    this.waited = 0;
    this.restUntil = now + this.rest;
    this.rest = Math.min(LONGEST_REST, this.rest * 2);
  }

  /** A pull without a hold was answered, with packets or without. */
  pulled(packets) {
    this.pause = packets ? FIRST_PAUSE : Math.min(LONGEST_PAUSE, this.pause * 2);
  }
}
