// The send half of a connection: the send queue, what is in flight, windows, edges and loss recovery (section 4).

import { StreamDigest } from '../digest.mjs';
import { TYPE } from '../wire/packet.mjs';
import { encodeEnd } from '../wire/payloads.mjs';
import { seqAdd, seqAfter, seqDiff } from '../wire/serial.mjs';
import { Flight, Flights } from './flight.mjs';
import { LossRecovery } from './recovery.mjs';

const EARLY_TOTAL = 64 * 1024; // 3.6
const EARLY_PACKET = 1024;

export class Sender {
  /** `initial` is the number of CONNECT or ACCEPTED, and `initialEdge` the edge of a new route in bytes (7.12). */
  constructor(initial, initialEdge) {
    this.flights = new Flights(seqAdd(initial, 1));
    this.queue = [];
    this.queued = 0; // bytes that have no number yet
    this.digest = new StreamDigest();
    this.sentBytes = 0;
    this.ackedBytes = 0; // up to the cumulative acknowledgement
    this.windowEnd = 0; // the furthest right edge that the peer has given (4.1)
    this.early = true; // before ACCEPTED
    this.wantFinish = false;
    this.wantClose = false;
    this.closeReceived = undefined; // the optional field of CLOSE (2.5)
    this.finishSent = false;
    this.closeFlight = null;
    this.closeTaken = false;
    this.ended = false;
    this.edge = { sequence: initial, bytes: initialEdge, era: 0 }; // 7.12
    this.initialEdge = initialEdge;
    this.heldSince = null; // the pause after DROPPED(full) runs since this time (4.10)
    this.option = null; // the payload of an OPTION that waits for its number (2.7)
    this.recovery = new LossRecovery(this);
    this.resent = 0;
  }

  write(bytes) {
    if (!bytes.length) return;
    this.queue.push(bytes);
    this.queued += bytes.length;
  }

  /** ACCEPTED itself is the first packet of the acceptor's stream (3.5). */
  addAccepted(initial, payload) {
    this.flights = new Flights(initial);
    const flight = new Flight(TYPE.ACCEPTED, initial, payload, 0);
    flight.resend = true;
    this.flights.add(flight);
    this.early = false;
    return flight;
  }

  opened(window, now) {
    this.early = false;
    this.windowEnd = Math.max(this.windowEnd, window);
    this.recovery.progressed(now);
  }

  get inFlight() {
    return this.sentBytes - this.ackedBytes;
  }

  /**
   * Only a cumulative acknowledgement of CLOSE ends the half: other endpoints name a CLOSE in a SACK range while data
   * before it is missing, and that data must still be sent again. `closeTaken`: SHUTDOWN has proven it (5.7).
   */
  get closeAcknowledged() {
    return this.closeFlight !== null && (this.closeTaken || seqAfter(this.flights.first, this.closeFlight.sequence));
  }

  get unsentEnd() {
    return (this.wantFinish && !this.finishSent) || (this.wantClose && !this.closeFlight);
  }
  get held() {
    return this.heldSince !== null;
  }

  /** Returns the bytes of DATA that load the relay (4.11). */
  load() {
    let sum = 0;
    for (const flight of this.flights.pending()) {
      if (!flight.length) continue;
      const above = seqAfter(flight.sequence, this.edge.sequence);
      for (const attempt of flight.attempts) {
        if (!attempt.lost && (above || attempt.era === this.edge.era)) sum += flight.length;
      }
    }
    return sum;
  }

  mayLoad(length, load) {
    return load + length <= this.edge.bytes || (load === 0 && length <= EARLY_PACKET);
  }

  /** Returns the packet to send again: a lost one that the limits allow, else the tail probe, else null. */
  again() {
    if (this.ended || this.held) return null;
    return this.nextLost() ?? this.recovery.tailProbe();
  }

  /** Whether anything could leave now, judged without side effects. */
  hasWork() {
    if (this.ended) return false;
    if (this.again() || this.mayOption) return true;
    if (this.queued) return this.mayCut(this.room(this.queued), this.queued);
    return !this.early && !this.held && this.unsentEnd;
  }

  nextLost() {
    const oldest = this.flights.oldest();
    for (const flight of this.flights.pending()) {
      if (!flight.resend || flight.type === TYPE.ACCEPTED) continue; // ACCEPTED is a control packet (4.14)
      if (flight === oldest) return flight; // 4.11: the oldest one may exceed B
      if (!this.mayLoad(flight.length, this.load())) return null;
      return flight;
    }
    return null;
  }

  /** Returns how much new DATA the window (4.1) and the edge (4.11) allow now; before ACCEPTED, how much 3.6 allows. */
  room(limit) {
    if (this.held) return 0;
    let most = limit;
    if (this.early) return Math.min(most, EARLY_PACKET, EARLY_TOTAL - this.sentBytes);
    most = Math.min(most, this.windowEnd - this.sentBytes);
    const load = this.load();
    const edge = this.edge.bytes - load;
    return Math.min(most, load === 0 ? Math.max(edge, EARLY_PACKET) : edge);
  }

  /** Returns whether to fill this room. A small rest of window or edge waits until it grows, to avoid tiny packets. */
  mayCut(room, wanted) {
    if (room <= 0) return false;
    return room >= Math.min(wanted, EARLY_PACKET) || !this.flights.oldest();
  }

  /** A new packet with at most `limit` bytes of payload, or null. */
  nextNew(limit) {
    if (this.ended) return null;
    if (this.mayOption) return this.nextOption();
    if (this.queued) {
      const room = this.room(Math.min(limit, this.queued));
      if (!this.mayCut(room, Math.min(limit, this.queued))) return null;
      const payload = this.take(room);
      this.digest.update(payload);
      this.sentBytes += payload.length;
      return this.number(TYPE.DATA, payload);
    }
    if (this.early || this.held) return null; // 3.6: no FINISH or CLOSE before ACCEPTED
    if (this.wantClose && !this.closeFlight) return this.nextClose();
    if (this.wantFinish && !this.finishSent && !this.closeFlight) {
      this.finishSent = true;
      return this.number(TYPE.FINISH, encodeEnd({ length: this.digest.length, digest: this.digest.digest() }));
    }
    return null;
  }

  /** OPTION needs no window. It leaves neither before ACCEPTED (3.6) nor after CLOSE. */
  get mayOption() {
    return this.option !== null && !this.early && !this.held && !this.closeFlight;
  }

  nextOption() {
    const payload = this.option;
    this.option = null;
    return this.number(TYPE.OPTION, payload);
  }

  nextClose() {
    const payload = encodeEnd({
      length: this.digest.length,
      digest: this.digest.digest(),
      received: this.closeReceived,
    });
    this.closeFlight = this.number(TYPE.CLOSE, payload);
    return this.closeFlight;
  }

  number(type, payload) {
    const flight = new Flight(type, this.flights.next, payload, this.sentBytes);
    this.flights.add(flight);
    return flight;
  }

  take(count) {
    const parts = [];
    let left = count;
    while (left) {
      const head = this.queue[0];
      if (head.length <= left) {
        parts.push(this.queue.shift());
        left -= head.length;
        continue;
      }
      parts.push(head.subarray(0, left));
      this.queue[0] = head.subarray(left);
      left = 0;
    }
    this.queued -= count;
    return parts.length === 1 ? parts[0] : Buffer.concat(parts);
  }

  /** Record an attempt of `flight`. The carrier reports its receipt or its loss to the attempt returned. */
  attempted(flight, now) {
    const attempt = { number: flight.attempts.length, receiptAt: null, lost: false, era: this.edge.era };
    if (attempt.number) this.resent += 1;
    else flight.sentAt = now;
    if (flight === this.recovery.probeNow) this.recovery.probeNow = null;
    flight.attempts.push(attempt);
    flight.resend = false;
    return attempt;
  }

  /** The exchange or link that carried the attempt was given up (4.10). */
  gaveUp(flight, attempt) {
    attempt.lost = true;
    if (!flight.acknowledged && flight.latest === attempt) flight.resend = true;
  }

  /** Handle a decoded ACK. Returns {malformed: true} (4.4), or {fresh} with the newly acknowledged packets. */
  acknowledge(ack, now) {
    const top = seqAdd(this.flights.next, -1);
    if (seqAfter(ack.cumulative, top) || ack.ranges.some((range) => seqAfter(range[1], top)))
      return { malformed: true };
    const fresh = [];
    const mark = (flight) => {
      if (flight && !flight.acknowledged) {
        flight.acknowledged = true;
        fresh.push(flight);
      }
    };
    for (const [first, last] of ack.ranges) {
      for (
        let s = seqDiff(first, this.flights.first) < 0 ? this.flights.first : first;
        !seqAfter(s, last);
        s = seqAdd(s, 1)
      )
        mark(this.flights.get(s));
    }
    const current = seqDiff(ack.cumulative, this.flights.cumulative) >= 0;
    const cause = this.flights.get(ack.cause);
    for (const flight of this.flights.release(ack.cumulative)) {
      mark(flight);
      this.ackedBytes = flight.end;
    }
    // The window of an older ACK lies left of one that has been seen already (4.1).
    if (current) this.windowEnd = Math.max(this.windowEnd, this.ackedBytes + ack.window);
    this.recovery.acknowledged(fresh, cause, ack, now);
    if (fresh.length) this.heldSince = null;
    return { fresh };
  }

  setEdge({ sequence, bytes }) {
    if (seqDiff(sequence, this.edge.sequence) < 0) return; // 2.10
    if (!seqAfter(this.flights.next, sequence)) return; // a number that has not been sent
    this.edge = { sequence, bytes, era: this.edge.era + 1 };
    this.heldSince = null;
  }

  /** DROPPED(full): the packets are lost, and no sequenced packet leaves for now (4.10). */
  dropped(first, last, now) {
    for (const flight of this.flights.pending()) {
      const named = seqDiff(flight.sequence, first) >= 0 && seqDiff(flight.sequence, last) <= 0;
      if (named && flight.latest) this.gaveUp(flight, flight.latest);
    }
    if (this.flights.oldest()) this.heldSince = now;
  }

  /** The route is resumed: everything unacknowledged is sent again, and the edge starts anew (6.6). */
  resume(now) {
    for (const flight of this.flights.pending()) {
      for (const attempt of flight.attempts) attempt.lost = true;
      flight.resend = true;
    }
    this.heldSince = null;
    this.edge = { sequence: this.flights.cumulative, bytes: this.initialEdge, era: this.edge.era + 1 };
    this.recovery.resumed(now);
  }

  /** The receipts of packets on a lost route are void: 4.5. */
  voidReceipts() {
    for (const flight of this.flights.pending()) for (const attempt of flight.attempts) attempt.receiptAt = null;
  }

  /** The send half ends: nothing of it is repeated (5.3, 5.4). Returns whether bytes stayed unacknowledged. */
  end(received) {
    if (received !== undefined && !seqAfter(received, seqAdd(this.flights.next, -1))) {
      for (const flight of this.flights.release(received)) {
        flight.acknowledged = true;
        this.ackedBytes = flight.end;
      }
    }
    let unread = this.queued > 0;
    for (const flight of this.flights.pending()) if (flight.length) unread = true;
    this.ended = true;
    this.queue = [];
    this.queued = 0;
    return unread;
  }
}
