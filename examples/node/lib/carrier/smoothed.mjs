// The smoothed time from a request to its answer, and the deadline computed from it: 7.8.

export class ExchangeTime {
  constructor() {
    this.srtt = null;
  }

  sample(time) {
    this.srtt = this.srtt === null ? time : this.srtt + (time - this.srtt) / 8;
  }

  get deadline() {
    return this.srtt === null ? 1000 : Math.min(30_000, Math.max(500, 4 * this.srtt));
  }
}
