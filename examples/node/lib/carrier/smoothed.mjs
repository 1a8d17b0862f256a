// The smoothed time from a request to its answer, and the deadline computed from it: 7.8.

const PERIOD = 60_000; // "the last minute or two" of 8.6
const LEAST_LONG_WAIT = 500;

export class ExchangeTime {
  constructor() {
    this.srtt = null;
    this.shortest = [Infinity, Infinity]; // in this period, and in the one before
    this.periodAt = 0;
  }

  sample(time, now) {
    this.srtt = this.srtt === null ? time : this.srtt + (time - this.srtt) / 8;
    if (now - this.periodAt >= PERIOD) {
      this.shortest = [Infinity, this.shortest[0]];
      this.periodAt = now;
    }
    this.shortest[0] = Math.min(this.shortest[0], time);
  }

  /** When an exchange has waited for longer than this, other requests take its turn (7.15, 8.6). */
  get longWait() {
    const least = Math.min(...this.shortest);
    return Math.max(LEAST_LONG_WAIT, least < Infinity ? 4 * least : 0);
  }

  /** The first wait of a push (7.8). */
  get deadline() {
    return this.srtt === null ? 1000 : Math.min(30_000, Math.max(500, 4 * this.srtt));
  }

  /** How long to wait before a request that may be lost leaves again, if other answers come (7.7, 7.8). */
  get soon() {
    return 50 + (this.srtt ?? 0) / 4;
  }
}
