// Loss recovery of the send half: RTO (4.6), tail probe (4.7), loss by time (4.8), spurious repeats (4.9).

import { MAX_ACK_DELAY, RoundTrip } from './rtt.mjs';

export class LossRecovery {
  constructor(sender) {
    this.sender = sender;
    this.rtt = new RoundTrip();
    this.ownPull = 0; // our pull interval
    this.peerPull = 0; // that of the peer, at most 60 s (4.6)
    this.settings = { lanes: 1 }; // the lanes in use at present (4.8)
    this.backoff = 1;
    this.lastProgress = 0;
    this.newestReceipt = 0;
    this.newestFlight = null;
    this.probed = false; // one tail probe until something new is acknowledged
    this.probeNow = null;
    this.expired = false; // the RTO has expired since the last progress
    this.ackedReceipt = -Infinity; // the latest receipt among acknowledged attempts
    this.reorderExtra = 0; // in quarters of SRTT
  }

  get pulls() {
    return this.ownPull + this.peerPull;
  }
  get rto() {
    return this.rtt.timeout(this.pulls);
  }
  get interval() {
    return Math.min(60_000, this.rto * this.backoff);
  }

  progressed(now) {
    this.lastProgress = now;
    this.backoff = 1;
    this.probed = false;
    this.probeNow = null;
    this.expired = false;
  }

  resumed(now) {
    this.progressed(now);
    this.newestFlight = null;
    this.ackedReceipt = -Infinity;
    this.sender.voidReceipts();
  }

  receipted(flight, attempt, now) {
    if (attempt.lost) return;
    attempt.receiptAt = now;
    this.newestReceipt = now;
    this.newestFlight = flight;
  }

  acknowledged(fresh, cause, ack, now) {
    const named = cause?.attempts[this.attemptOf(cause, ack.attempt)];
    if (cause && named && named !== cause.latest && ack.attempt !== (cause.latest.number & 0xff)) this.spurious(cause);
    for (const flight of fresh) this.acknowledgedOne(flight, flight === cause ? named : null, ack, now);
    if (fresh.length) this.progressed(now);
  }

  /** The index of the newest attempt whose number mod 256 is `attempt` (1.1). */
  attemptOf(flight, attempt) {
    for (let i = flight.attempts.length - 1; i >= 0; i -= 1) if ((i & 0xff) === attempt) return i;
    return -1;
  }

  acknowledgedOne(flight, named, ack, now) {
    if (named?.receiptAt != null) this.rtt.sample(now - named.receiptAt - Math.min(ack.delay / 1000, MAX_ACK_DELAY));
    // An ACK names one attempt only. For other packets the oldest receipt counts, which declares fewer packets lost.
    const attempt = named ?? flight.attempts.find((one) => one.receiptAt !== null);
    if (attempt?.receiptAt != null) this.ackedReceipt = Math.max(this.ackedReceipt, attempt.receiptAt);
  }

  spurious(flight) {
    if (flight.spuriousSeen === flight.latest) return; // one proof for each retransmission
    flight.spuriousSeen = flight.latest;
    this.reorderExtra = Math.min(16, this.reorderExtra + 1);
  }

  get reorderingWindow() {
    const { srtt } = this.rtt;
    const base = this.settings.lanes > 1 ? srtt : srtt / 4;
    return Math.max(1, Math.min(base + (this.reorderExtra * srtt) / 4, Math.max(4 * srtt, base)));
  }

  /** Returns when the RTO sends the oldest packet again, or Infinity. */
  rtoAt() {
    const oldest = this.sender.flights.oldest();
    if (!oldest || oldest.resend || oldest.latest?.receiptAt == null) return Infinity;
    return Math.max(oldest.latest.receiptAt, this.lastProgress) + this.interval;
  }

  /** Returns when the pause after DROPPED(full) ends by itself: this needs no receipt (4.10). */
  pauseAt() {
    return this.sender.held ? this.sender.heldSince + this.rto : Infinity;
  }

  tailProbeAt() {
    const { srtt } = this.rtt;
    if (srtt === null || this.probed || this.expired || !this.sender.flights.oldest()) return Infinity;
    const flight = this.newestFlight;
    if (!flight || flight.acknowledged || flight.resend || flight.latest.receiptAt === null) return Infinity;
    const at = Math.max(this.newestReceipt, this.lastProgress) + 2 * srtt + MAX_ACK_DELAY + this.pulls;
    return at < this.rtoAt() ? at : Infinity;
  }

  /** Mark the packets that count as lost now (4.8). Returns when the next one will, or Infinity. */
  lossAt(now) {
    let next = Infinity;
    if (this.rtt.srtt === null) return next;
    const wait = this.rtt.latest + this.reorderingWindow;
    for (const flight of this.sender.flights.pending()) {
      const attempt = flight.latest;
      if (flight.resend || !attempt || attempt.receiptAt === null || attempt.receiptAt >= this.ackedReceipt) continue;
      if (attempt.receiptAt + wait <= now) this.sender.gaveUp(flight, attempt);
      else next = Math.min(next, attempt.receiptAt + wait);
    }
    return next;
  }

  nextTimeout(now) {
    if (this.sender.ended) return Infinity;
    return Math.min(this.lossAt(now), this.rtoAt(), this.tailProbeAt(), this.pauseAt());
  }

  handleTimeout(now) {
    if (this.sender.ended) return;
    this.lossAt(now);
    if (this.pauseAt() <= now) this.sender.heldSince = null;
    if (this.tailProbeAt() <= now) {
      this.probed = true;
      this.probeNow = this.newestFlight;
    }
    if (this.rtoAt() <= now) {
      const oldest = this.sender.flights.oldest();
      this.sender.gaveUp(oldest, oldest.latest);
      this.expired = true;
      this.backoff *= 2;
    }
  }

  /** The packet that the tail probe sends again; `attempted` of the sender clears it. */
  tailProbe() {
    return this.probeNow && !this.probeNow.acknowledged ? this.probeNow : null;
  }
}
