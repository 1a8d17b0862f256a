// Round-trip times and the timeout computed from them: 4.5, 4.6. All times here are milliseconds.

export const MAX_ACK_DELAY = 25;
const GRANULARITY = 10;

export class RoundTrip {
  constructor() {
    this.srtt = null;
    this.rttvar = null;
    this.latest = null;
  }

  /** RFC 6298, section 2. A sample is at least 1 microsecond. */
  sample(rtt) {
    const value = Math.max(rtt, 0.001);
    this.latest = value;
    if (this.srtt === null) {
      this.srtt = value;
      this.rttvar = value / 2;
      return;
    }
    this.rttvar += (Math.abs(this.srtt - value) - this.rttvar) / 4;
    this.srtt += (value - this.srtt) / 8;
  }

  /** The retransmission timeout; `pulls` is the sum of both sides' pull intervals. */
  timeout(pulls) {
    const base = this.srtt === null ? 1000 : this.srtt + Math.max(4 * this.rttvar, GRANULARITY) + MAX_ACK_DELAY;
    return Math.min(60_000, Math.max(1000, base + pulls));
  }
}
