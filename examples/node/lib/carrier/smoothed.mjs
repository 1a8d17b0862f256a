// The smoothed time from a request to its answer, and the deadline computed from it: 7.8.

export class ExchangeTime {
  constructor() {
    this.srtt = null;
  }

  sample(time) {
    this.srtt = this.srtt === null ? time : this.srtt + (time - this.srtt) / 8;
  }

  /** The deadline of a push. */
  get deadline() {
    return this.srtt === null ? 1000 : Math.min(30_000, Math.max(500, 4 * this.srtt));
  }

  /** How long to wait before a request that may be lost leaves again, if other answers come (7.7, 7.8). */
  get soon() {
    return 50 + (this.srtt ?? 0) / 4;
  }
}
