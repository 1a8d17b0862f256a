// The receive half of a connection: order, window, digests and acknowledgements (4.1 to 4.4, 4.12, 5.1).

import { StreamDigest } from '../digest.mjs';
import { TYPE } from '../wire/packet.mjs';
import { decodeEnd, encodeAck } from '../wire/payloads.mjs';
import { seqAdd, seqDiff } from '../wire/serial.mjs';

const TOO_FAR = 8192; // packets ahead of the cumulative sequence
const MAX_DELAY = 25;
const MAX_RANGES = 32;

export class IntegrityError extends Error {}

export class Receiver {
  /** `early`: the bytes that are taken whatever window was announced (3.6). */
  constructor(windowLimit, largestPacket, early = 0) {
    this.early = early;
    this.limit = windowLimit;
    this.updateStep = Math.min(windowLimit / 4, 2 * largestPacket); // 4.12
    this.cumulative = null; // until the peer's initial number is known
    this.ahead = new Map(); // number -> packet above the cumulative sequence, in the order in which they arrived last
    this.aheadBytes = 0;
    this.received = 0; // bytes of DATA in order
    this.unread = [];
    this.unreadBytes = 0;
    this.windowEnd = windowLimit; // right edge as announced; it never moves left (4.1)
    this.digest = new StreamDigest();
    this.options = []; // payloads of OPTION that the connection applies (2.7)
    this.discarding = false;
    this.finished = false; // FINISH or CLOSE has come in order
    this.closed = false; // CLOSE has come in order
    this.closeSeen = null; // CLOSE has come, perhaps ahead of others: its payload
    this.cause = null;
    this.ackNow = false;
    this.pendingSince = null;
    this.pendingBytes = 0;
    this.lastAck = -Infinity;
  }

  start(initial, attempt, now) {
    this.cumulative = initial;
    this.cause = { sequence: initial, attempt, at: now, reported: false };
  }

  /** What the window announces now; the right edge grows with what the reader has taken. */
  window() {
    // Early data may lie beyond the announced window (3.6): then the window is 0.
    this.windowEnd = Math.max(this.windowEnd, this.reach(), this.received);
    return this.windowEnd - this.received;
  }

  reach() {
    return this.received + this.limit - (this.discarding ? 0 : this.unreadBytes);
  }

  /** A sequenced packet of the peer. Returns true if it was new and kept. Throws IntegrityError (5.1). */
  handle(packet, now) {
    const distance = seqDiff(packet.sequence, this.cumulative);
    if (distance <= 0 || this.ahead.has(packet.sequence)) {
      this.ackNow = true; // it came twice
      this.arrivedAgain(packet.sequence);
      this.noteCause(packet, now);
      return false;
    }
    if (!this.hasRoom(packet, distance)) {
      this.ackNow = true; // 4.3: a refused packet is answered with an ACK, but that does not name it as its cause
      return false;
    }
    if (packet.type === TYPE.CLOSE) this.closeSeen = decodeEnd(packet.payload);
    if (distance === 1) {
      this.deliver(packet);
      this.deliverAhead();
    } else {
      this.ahead.set(packet.sequence, packet);
      if (packet.type === TYPE.DATA) this.aheadBytes += packet.payload.length;
    }
    this.noteCause(packet, now);
    if (packet.type !== TYPE.DATA || this.ahead.size) this.ackNow = true;
    this.pendingSince ??= now;
    this.pendingBytes += packet.payload.length;
    return true;
  }

  /** A repeat of a kept packet counts as an arrival (4.3), so its range comes first in the next ACK (2.4). */
  arrivedAgain(sequence) {
    const kept = this.ahead.get(sequence);
    if (!kept) return;
    this.ahead.delete(sequence);
    this.ahead.set(sequence, kept);
  }

  hasRoom(packet, distance) {
    if (distance > TOO_FAR) return false;
    if (packet.type !== TYPE.DATA || this.discarding) return true;
    const end = Math.max(this.windowEnd, this.early);
    return this.received + (distance === 1 ? 0 : this.aheadBytes) + packet.payload.length <= end;
  }

  noteCause(packet, now) {
    this.cause = { sequence: packet.sequence, attempt: packet.attempt, at: now, reported: false };
  }

  deliver(packet) {
    if (packet.type === TYPE.FINISH || packet.type === TYPE.CLOSE) this.verify(packet);
    this.cumulative = packet.sequence;
    if (packet.type === TYPE.OPTION) this.options.push(packet.payload);
    if (packet.type !== TYPE.DATA || this.finished) return;
    this.received += packet.payload.length;
    if (this.discarding || !packet.payload.length) return;
    this.digest.update(packet.payload);
    this.unread.push(packet.payload);
    this.unreadBytes += packet.payload.length;
  }

  deliverAhead() {
    for (;;) {
      const sequence = seqAdd(this.cumulative, 1);
      const packet = this.ahead.get(sequence);
      if (!packet) return;
      this.ahead.delete(sequence);
      if (packet.type === TYPE.DATA) this.aheadBytes -= packet.payload.length;
      this.deliver(packet);
    }
  }

  /** Length and digest are verified before FINISH or CLOSE is acknowledged (5.1), if the data was kept. */
  verify(packet) {
    const end = decodeEnd(packet.payload);
    if (!this.discarding) {
      if (end.length !== this.received)
        throw new IntegrityError(`the stream has ${this.received} bytes instead of ${end.length}`);
      if (!end.digest.equals(this.digest.digest()))
        throw new IntegrityError('the stream has another digest than its sender');
    }
    this.finished = true;
    if (packet.type === TYPE.CLOSE) this.closed = true;
  }

  /** The application takes what is in order. */
  read() {
    if (!this.unread.length) return null;
    const bytes = this.unread.shift();
    this.unreadBytes -= bytes.length;
    if (this.reach() - this.windowEnd >= this.updateStep) this.ackNow = true; // 4.12
    return bytes;
  }

  /** Our application has called close(): nothing is kept any more (5.2). */
  discard() {
    this.discarding = true;
    this.unread = [];
    this.unreadBytes = 0;
  }

  /** When an ACK is due (4.3), or Infinity. */
  ackAt() {
    if (this.cumulative === null) return Infinity;
    if (this.ackNow) return -Infinity;
    if (this.pendingSince === null) return Infinity;
    const gap = this.pendingBytes >= 16 * 1024 ? 1 : 10;
    return Math.min(this.pendingSince + MAX_DELAY, Math.max(this.pendingSince, this.lastAck + gap));
  }

  /** The payload of an ACK that leaves now. */
  makeAck(now) {
    const { cause } = this;
    const delay = cause.reported ? 0 : Math.max(0, Math.round((now - cause.at) * 1000));
    cause.reported = true;
    this.ackNow = false;
    this.pendingSince = null;
    this.pendingBytes = 0;
    this.lastAck = now;
    return encodeAck({
      cumulative: this.cumulative,
      window: this.window(),
      delay,
      cause: cause.sequence,
      attempt: cause.attempt,
      ranges: this.ranges(),
    });
  }

  /** Packets kept ahead that SACK ranges name. A FINISH or CLOSE is left out until it is verified: 5.1 allows both. */
  kept() {
    return [...this.ahead.values()].filter(
      (packet) => this.discarding || (packet.type !== TYPE.FINISH && packet.type !== TYPE.CLOSE),
    );
  }

  /** SACK ranges: first the one whose packet arrived last, then the others by their last arrival, as in RFC 2018. */
  ranges() {
    if (!this.ahead.size) return [];
    const kept = this.kept().map((packet, arrival) => ({ sequence: packet.sequence, arrival }));
    const ranges = [];
    for (const { sequence, arrival } of kept.sort((a, b) => seqDiff(a.sequence, b.sequence))) {
      const last = ranges[ranges.length - 1];
      if (last && seqAdd(last.last, 1) === sequence) {
        last.last = sequence;
        last.arrival = Math.max(last.arrival, arrival);
      } else ranges.push({ first: sequence, last: sequence, arrival });
    }
    ranges.sort((a, b) => b.arrival - a.arrival);
    return ranges.slice(0, MAX_RANGES).map(({ first, last }) => [first, last]);
  }
}
