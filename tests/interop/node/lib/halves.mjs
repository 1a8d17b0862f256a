// The two halves of a connection: order, windows, edges, acknowledgements, digests and repeats (sections 4 and 5.1).
import { createXXHash128 } from 'hash-wasm';
import { PAYLOAD, TYPE, seqAdd, seqAfter, seqDiff } from './wire.mjs';
const [TOO_FAR, MAX_RANGES] = [8192, 32]; // packets ahead of the cumulative sequence, and ranges of them
const [ACK_DELAY, LONGEST_RTO] = [10, 60_000]; // 4.3 allows 25 ms
const TINY = 1024; // bytes: a smaller rest of a window waits until it grows
const within = (sequence, [first, last]) => seqDiff(sequence, first) >= 0 && seqDiff(sequence, last) <= 0;

// XXH3-128 with seed 0 (2.5). Streams share one WebAssembly instance, which can only be made asynchronously.
const shared = await createXXHash128(0, 0);
const EMPTY = shared.init().save();
export class StreamDigest {
  constructor() { Object.assign(this, { state: EMPTY, length: 0 }); }
  update(bytes) { shared.load(this.state); this.state = shared.update(bytes).save(); this.length += bytes.length; }
  digest() { shared.load(this.state); return Buffer.from(shared.digest('binary')); }
}

export class Receiver {
  constructor(limit, largestPacket) {
    Object.assign(this, { limit, windowEnd: limit, digest: new StreamDigest() }); // the end never moves left (4.1)
    this.updateStep = Math.min(limit / 4, 2 * largestPacket); // 4.12
    // `ahead`: number -> packet beyond a gap, in order of arrival. The peer's first number is not known yet.
    Object.assign(this, { cumulative: null, ahead: new Map() });
    Object.assign(this, { unread: [], options: [] }); // payloads of DATA and of OPTION, in order
    Object.assign(this, { received: 0, aheadBytes: 0, unreadBytes: 0 }); // `received`: bytes of DATA in order
    this.discarding = false; // our application has called close() (5.2)
    Object.assign(this, { finished: false, closed: false }); // FINISH or CLOSE, and CLOSE, has come in order
    Object.assign(this, { ackNow: false, pendingSince: null }); // since when an ACK is delayed
  }
  start({ sequence, attempt }, now) { this.cumulative = sequence; this.cause = { sequence, attempt, at: now }; }
  reach() { return this.received + this.limit - this.unreadBytes; }
  window() { this.windowEnd = Math.max(this.windowEnd, this.reach()); return this.windowEnd - this.received; }
  /** A sequenced packet of the peer. Afterwards `broken` says what is wrong with the stream, if anything is (5.1). */
  handle(packet, now) {
    const { type, sequence, attempt, payload } = packet;
    const distance = seqDiff(sequence, this.cumulative);
    const known = distance <= 0 || this.ahead.has(sequence);
    const length = type === TYPE.DATA ? payload.length : 0;
    const before = this.received + (distance === 1 ? 0 : this.aheadBytes);
    const fits = distance <= TOO_FAR && (!length || this.discarding || before + length <= this.windowEnd);
    this.ackNow ||= known || !fits || this.ahead.size > 0 || distance > 1 || type !== TYPE.DATA;
    if (known || fits) this.cause = { sequence, attempt, at: now }; // 4.3
    if (known || !fits) return;
    this.pendingSince ??= now;
    this.ahead.set(sequence, packet);
    this.aheadBytes += length;
    for (let next; !this.broken && (next = this.ahead.get(seqAdd(this.cumulative, 1)));) this.deliver(next);
  }
  deliver({ type, payload, sequence }) {
    if (type === TYPE.FINISH || type === TYPE.CLOSE) this.verify(type, PAYLOAD[type].decode(payload));
    if (this.broken) return;
    this.cumulative = sequence;
    this.ahead.delete(sequence);
    if (type === TYPE.OPTION) this.options.push(payload);
    if (type !== TYPE.DATA) return;
    this.aheadBytes -= payload.length;
    if (this.closed || !payload.length) return;
    if (this.finished) this.broken = 'data follows the end of the stream';
    this.received += payload.length;
    if (this.discarding) return;
    this.digest.update(payload);
    this.unread.push(payload);
    this.unreadBytes += payload.length;
  }
  /** Length and digest are verified before FINISH or CLOSE is acknowledged, if the data was kept. */
  verify(type, end) {
    const isRight = end.length === this.received && end.digest.equals(this.digest.digest());
    if (!this.discarding && !isRight) this.broken = 'the stream has another length or digest than its sender says';
    this.finished = true;
    this.closed ||= type === TYPE.CLOSE;
    this.peerReceived = end.received;
  }
  /** The application takes what is in order: the next bytes, or null. */
  read() {
    const bytes = this.unread.shift() ?? null;
    this.unreadBytes -= bytes?.length ?? 0;
    if (this.reach() - this.windowEnd >= this.updateStep) this.ackNow = true; // 4.12
    return bytes;
  }
  discard() { Object.assign(this, { discarding: true, unread: [], unreadBytes: 0 }); }
  /** When an ACK is due (4.3), or Infinity. */
  ackAt() {
    if (this.cumulative === null) return Infinity;
    return this.ackNow ? -Infinity : (this.pendingSince ?? Infinity) + ACK_DELAY;
  }
  /** The values of an ACK that leaves now. */
  makeAck(now) {
    const { cumulative, cause } = this;
    const delay = cause.at === null ? 0 : Math.max(0, Math.round((now - cause.at) * 1000));
    Object.assign(this, { ackNow: false, pendingSince: null });
    cause.at = null; // a later ACK for the same cause has waited for nothing
    const ranges = this.ranges();
    const { sequence, attempt } = cause;
    return { cumulative, window: this.window(), delay, cause: sequence, attempt, count: ranges.length, ranges };
  }
  /** SACK ranges, the one in which a packet arrived last first (2.4). */
  ranges() {
    const kept = [...this.ahead.keys()].map((sequence, arrival) => ({ sequence, arrival }));
    const ranges = [];
    for (const { sequence, arrival } of kept.sort((a, b) => seqDiff(a.sequence, b.sequence))) {
      const last = ranges[ranges.length - 1];
      if (last && seqAdd(last.range[1], 1) === sequence) {
        last.range[1] = sequence;
        last.arrival = Math.max(last.arrival, arrival);
      } else ranges.push({ range: [sequence, sequence], arrival });
    }
    return ranges.sort((a, b) => b.arrival - a.arrival).map(({ range }) => range).slice(0, MAX_RANGES);
  }
}

export class Sender {
  /** `settings`: {initialEdge (7.12), pullInterval}. */
  constructor(first, settings, now) {
    Object.assign(this, { first, settings }); // `first`: the oldest number that is not acknowledged cumulatively
    // the packets from `first` on, and bytes that have no number yet
    Object.assign(this, { flights: [], queue: [], queued: 0, digest: new StreamDigest() });
    Object.assign(this, { sentBytes: 0, ackedBytes: 0, windowEnd: 0 });
    Object.assign(this, { open: false, ended: false }); // nothing leaves before ACCEPTED
    Object.assign(this, { wantFinish: false, wantClose: false, finishSent: false, closeFlight: null });
    this.closeTaken = false; // SHUTDOWN or REJECTED(finished) has proven it (5.7)
    this.edge = { sequence: seqAdd(first, -1), bytes: settings.initialEdge };
    Object.assign(this, { srtt: null, peerPull: 0 }); // the pull interval of the peer
    this.progressed(now);
  }
  get nextNumber() { return seqAdd(this.first, this.flights.length); }
  pending() { return this.flights.filter((flight) => !flight.acknowledged); }
  get oldest() { return this.flights.find((flight) => !flight.acknowledged); }
  get closeAcknowledged() {
    return this.closeFlight !== null && (this.closeTaken || seqAfter(this.first, this.closeFlight.sequence)); // 5.3
  }
  write(bytes) { if (bytes.length) this.queue.push(bytes); this.queued += bytes.length; }
  number(type, payload) {
    const length = type === TYPE.DATA ? payload.length : 0; // only DATA counts in windows
    this.sentBytes += length;
    const flight = { type, payload, length, sequence: this.nextNumber, end: this.sentBytes, acknowledged: false };
    // `resend`: it counts as lost. `loads`: its payload may wait at the relay (4.11).
    this.flights.push(Object.assign(flight, { attempts: [], resend: false, loads: false }));
    return flight;
  }
  load() { return this.pending().reduce((sum, { loads, length }) => sum + (loads ? length : 0), 0); }
  /** How much new DATA the window (4.1) and the edge (4.11) allow. */
  room() {
    const load = this.load();
    return Math.min(this.windowEnd - this.sentBytes, Math.max(this.edge.bytes - load, load === 0 ? TINY : 0));
  }
  /** The packet to send again, or null. The oldest one may exceed the edge (4.11). */
  again() {
    if (this.ended || this.heldUntil !== null) return null;
    const flight = this.flights.find((one) => one.resend && !one.acknowledged && one.type !== TYPE.ACCEPTED);
    if (!flight || flight === this.oldest) return flight ?? null;
    return this.load() + flight.length <= this.edge.bytes ? flight : null;
  }
  /** The type of the next new packet, or null. */
  newType() {
    if (this.ended || !this.open || this.heldUntil !== null || this.closeFlight) return null;
    const room = this.room();
    if (this.queued) return room >= Math.min(this.queued, TINY) || (!this.oldest && room > 0) ? TYPE.DATA : null;
    if (this.wantClose) return TYPE.CLOSE;
    return this.wantFinish && !this.finishSent ? TYPE.FINISH : null;
  }
  /** A new packet with at most `limit` bytes of payload, or null. */
  nextNew(limit) {
    const type = this.newType();
    if (type === null) return null;
    if (type === TYPE.DATA) return this.number(type, this.take(Math.min(limit, this.queued, this.room())));
    const isClose = type === TYPE.CLOSE;
    const end = { high: 0, length: this.digest.length, digest: this.digest.digest() };
    const flight = this.number(type, PAYLOAD[type].encode(isClose ? { ...end, received: this.closeReceived } : end));
    Object.assign(this, isClose ? { closeFlight: flight } : { finishSent: true });
    return flight;
  }
  take(count) {
    const all = Buffer.concat(this.queue);
    this.queue = [all.subarray(count)];
    this.queued -= count;
    this.digest.update(all.subarray(0, count));
    return all.subarray(0, count);
  }
  /** Record an attempt of `flight`. The carrier notes its receipt, or gives it up. */
  attempted(flight, now) {
    const attempt = { number: flight.attempts.length, receiptAt: null };
    flight.attempts.push(attempt);
    flight.sentAt ??= now;
    Object.assign(flight, { latest: attempt, resend: false, loads: true });
    return attempt;
  }
  /** Handle a decoded ACK. Returns false if it is malformed (4.4). */
  acknowledge(ack, now) {
    const last = seqAdd(this.nextNumber, -1);
    if (seqAfter(ack.cumulative, last) || ack.ranges.some((range) => seqAfter(range[1], last))) return false;
    const isNamed = ({ sequence: s }) => !seqAfter(s, ack.cumulative) || ack.ranges.some((range) => within(s, range));
    const fresh = this.pending().filter(isNamed);
    const cause = fresh.find(({ sequence }) => sequence === ack.cause);
    const attempt = cause?.attempts.filter((one) => (one.number & 0xff) === ack.attempt).pop();
    if (attempt?.receiptAt != null) this.sample(now - attempt.receiptAt - Math.min(ack.delay / 1000, 25)); // 4.5
    const isCurrent = seqDiff(ack.cumulative, seqAdd(this.first, -1)) >= 0;
    for (const flight of fresh) flight.acknowledged = true;
    this.release(ack.cumulative);
    if (isCurrent) this.windowEnd = Math.max(this.windowEnd, this.ackedBytes + ack.window); // 4.1
    if (fresh.length) this.progressed(now);
    return true;
  }
  release(cumulative) {
    for (const flight of this.flights.splice(0, Math.max(0, seqDiff(cumulative, this.first) + 1))) {
      flight.acknowledged = true;
      this.ackedBytes = flight.end;
      this.first = seqAdd(flight.sequence, 1);
    }
  }
  setEdge({ sequence, bytes }) {
    if (seqDiff(sequence, this.edge.sequence) < 0 || !seqAfter(this.nextNumber, sequence)) return; // 2.10
    const raised = [seqAdd(this.edge.sequence, 1), sequence];
    for (const flight of this.flights) if (within(flight.sequence, raised)) flight.loads = false;
    Object.assign(this, { edge: { sequence, bytes }, heldUntil: null });
  }
  /** DROPPED(full): the packets are lost, and no sequenced packet leaves for now (4.10). */
  dropped(first, last, now) {
    for (const flight of this.pending()) if (within(flight.sequence, [first, last])) this.gaveUp(flight);
    if (this.oldest) this.heldUntil = now + this.rto;
  }
  gaveUp(flight) { Object.assign(flight, { resend: true, loads: false }); }
  /** 6.6: everything unacknowledged is sent again, and the edge starts anew. */
  resume(now) {
    for (const flight of this.pending()) this.gaveUp(flight);
    this.edge = { sequence: seqAdd(this.first, -1), bytes: this.settings.initialEdge };
    this.progressed(now);
    this.voidReceipts();
  }
  /** 4.5: the time for which a route is lost is no round trip. */
  voidReceipts() { for (const { attempts } of this.flights) for (const attempt of attempts) attempt.receiptAt = null; }
  /** The send half ends: nothing of it is repeated (5.3, 5.4). Returns whether bytes stay unacknowledged. */
  end(received) {
    if (received !== undefined && !seqAfter(received, seqAdd(this.nextNumber, -1))) this.release(received);
    const unread = this.queued > 0 || this.pending().some((flight) => flight.length);
    Object.assign(this, { ended: true, queue: [], queued: 0 });
    return unread;
  }
  /** A new acknowledgement, ACCEPTED or a resume: the interval is the RTO again, and the pause of 4.10 ends. */
  progressed(now) { Object.assign(this, { lastProgress: now, backoff: 1, heldUntil: null }); }
  get rto() {
    const spread = this.srtt === null ? 1000 : this.srtt + Math.max(4 * this.rttvar, 10) + 25;
    return Math.min(LONGEST_RTO, Math.max(1000, spread + this.settings.pullInterval + this.peerPull));
  }
  sample(time) { // RFC 6298
    const rtt = Math.max(time, 0.001);
    this.rttvar = this.srtt === null ? rtt / 2 : this.rttvar + (Math.abs(this.srtt - rtt) - this.rttvar) / 4;
    this.srtt = this.srtt === null ? rtt : this.srtt + (rtt - this.srtt) / 8;
  }
  rtoAt() {
    const oldest = this.oldest;
    if (!oldest || oldest.resend || oldest.latest?.receiptAt == null) return Infinity;
    return Math.max(oldest.latest.receiptAt, this.lastProgress) + Math.min(LONGEST_RTO, this.rto * this.backoff);
  }
  next() { return this.ended ? Infinity : Math.min(this.rtoAt(), this.heldUntil ?? Infinity); }
  handleTimeout(now) {
    if (this.heldUntil <= now) this.heldUntil = null;
    if (this.ended || this.rtoAt() > now) return;
    this.gaveUp(this.oldest);
    this.backoff *= 2;
  }
}
