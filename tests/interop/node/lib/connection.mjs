// One connection (sections 3 to 6). It holds no clock and no socket: callers pass the time (ms) in, and take packets
// out. initiator.mjs and acceptor.mjs have what differs between the two sides.
import { Malformed } from './fields.mjs';
import { Receiver, Sender } from './halves.mjs';
import { Repeat } from './repeat.mjs';
import { ABORT, PAYLOAD, TYPE, encodePacket } from './wire.mjs';
const [WRITE_BUFFER, LONGEST_PING] = [256 * 1024, 64]; // bytes (1.5)
const [LONGEST_PULL, SHORTEST_DRAIN] = [60_000, 60_000]; // 4.6, 5.7
const DROP = Object.freeze({ NO_ROUTE: 2, GONE: 3, TOO_LARGE: 4 });
const SEQUENCED = new Set([TYPE.DATA, TYPE.FINISH, TYPE.CLOSE, TYPE.OPTION]);
const OPENING = new Set([TYPE.CONNECT, TYPE.ACCEPTED, TYPE.REJECTED]);

export class Connection {
  /** identity: {id, initial, routeKey, kind, host, port}; `first` is the number of the first packet of our stream. */
  constructor(settings, identity, now, first) {
    const { userTimeout, largestPacket: peerLargest } = settings;
    Object.assign(this, { settings, userTimeout, peerLargest, peerId: 0, ...identity });
    this.sender = new Sender(first, settings, now);
    this.receiver = new Receiver(settings.window, settings.largestPacket);
    Object.assign(this, { state: 'connecting', error: null }); // then open, drain, dead; why the connection was lost
    Object.assign(this, { appClosed: false, endRead: false }); // the application has read up to the peer's CLOSE (5.5)
    Object.assign(this, { routeLostSince: null, attachmentLostSince: null, lastHeard: now });
    Object.assign(this, { optionVersion: 0, pong: null }); // the peer's last OPTION (2.7), and a PING to answer
    Object.assign(this, { connect: new Repeat(), ping: new Repeat(), probe: new Repeat() }); // 3.1 and 6.5, 4.16, 4.12
    // `last`: the connection is forgotten after the next SHUTDOWN
    Object.assign(this, { shutdown: new Repeat(), shutdowns: 0, shutdownCame: false, last: false }); // 5.7
  }
  get dead() { return this.state === 'dead'; }
  get accepted() { return this.state === 'open' || this.state === 'drain'; }
  get silent() { return this.routeLostSince !== null || this.dead; }
  get writable() { return this.sender.queued < WRITE_BUFFER; }
  /** The next bytes, or null; then `atEnd` says whether the stream has ended. */
  read(now) {
    const bytes = this.receiver.read();
    this.endRead ||= !bytes && this.receiver.closed;
    this.checkEnd(now);
    return bytes;
  }
  get atEnd() { return this.receiver.finished && !this.receiver.unread.length; }
  /** End both directions (5.2). What the application has not read is discarded. */
  close(now) {
    if (this.appClosed || this.dead) return;
    this.appClosed = true;
    this.receiver.discard();
    this.sender.wantClose = !this.receiver.closed;
    this.sender.closeReceived = this.receiver.cumulative ?? undefined;
    this.checkEnd(now);
  }
  abort(reason = ABORT.APPLICATION, text = 'the application has aborted the connection') {
    if (this.dead) return;
    if (this.peerId) this.farewell = { reason, text }; // 3.12: else the connection is forgotten without a packet
    this.die(new Error(text));
  }
  /** The connection is over. The application gets the error, if there is one, except during a drain (5.8). */
  die(error) { if (this.dead) return; if (this.state !== 'drain') this.error = error; this.state = 'dead'; }
  /** A packet whose ids the endpoint has checked (3.8). */
  handle(packet, now) {
    if (this.dead) return undefined;
    const { type, payload } = packet;
    const values = PAYLOAD[type]?.decode(payload); // a malformed packet ends here, unacknowledged (2.0)
    if (type === TYPE.DROPPED) return this.dropped(values, now);
    if (type === TYPE.EDGE) return this.sender.setEdge(values);
    if (OPENING.has(type)) return this.handleOpening(packet, values, now);
    if (this.state === 'connecting') return this.hold(packet);
    this.heard(now, type);
    if (SEQUENCED.has(type)) return this.sequenced(packet, now);
    if (type === TYPE.ACK) return this.acknowledged(values, now);
    if (type === TYPE.SHUTDOWN) return this.handleShutdown(now);
    if (type === TYPE.ABORT)
      return this.die(new Error(`the peer ended the connection: ${values.text || `reason ${values.reason}`}`));
    if (type === TYPE.PROBE) this.receiver.ackNow = true;
    else if (type === TYPE.PING && payload.length <= LONGEST_PING) this.pong = payload;
    return undefined;
  }
  heard(now) { this.lastHeard = now; this.ping.stop(); } // 4.16
  acknowledged(ack, now) {
    if (!this.sender.acknowledge(ack, now)) throw new Malformed('an ACK names packets that were never sent');
    this.probe.since = null; // answered, even if the window is still closed
    this.checkEnd(now);
  }
  sequenced(packet, now) {
    const { receiver, sender } = this;
    const { closed } = receiver;
    receiver.handle(packet, now);
    if (receiver.broken) this.abort(ABORT.INTEGRITY, receiver.broken); // 5.1
    for (const payload of receiver.options.splice(0)) {
      const { version, options } = PAYLOAD[TYPE.OPTION].decode(payload);
      if (version > this.optionVersion) this.applyPeerOptions(options);
      this.optionVersion = Math.max(version, this.optionVersion);
    }
    if (closed || !receiver.closed) return;
    this.unreadByPeer = sender.end(receiver.peerReceived) && !this.appClosed; // 5.4
    this.checkEnd(now);
  }
  dropped({ reason, first, last, limit }, now) { // 4.10 and 6.7
    if (reason === DROP.NO_ROUTE) this.loseRoute(now);
    else if (reason === DROP.GONE) this.die(new Error('the peer is gone: the relay has lost its attachment'));
    else if (reason === DROP.TOO_LARGE) this.abort(ABORT.PROTOCOL, `the relay takes packets of at most ${limit} bytes`);
    else this.sender.dropped(first, last, now);
  }
  /** Options of CONNECT, ACCEPTED or OPTION. An absent one changes nothing. */
  applyPeerOptions({ largestPacket, userTimeout, pullInterval }) {
    this.peerLargest = largestPacket ?? this.peerLargest;
    if (userTimeout) this.userTimeout = Math.min(this.settings.userTimeout, userTimeout); // 4.15
    if (pullInterval !== undefined) this.sender.peerPull = Math.min(LONGEST_PULL, pullInterval);
  }
  /** The relay has no route any more: the initiator resumes it, the acceptor waits (6.5, 6.7). */
  loseRoute(now) {
    if (!this.accepted || this.routeLostSince !== null) return;
    this.routeLostSince = now;
    this.sender.voidReceipts();
    this.routeLost();
  }
  routeBound(now) {
    this.routeLostSince = null;
    this.sender.resume(now);
    this.receiver.ackNow = true; // 6.6
    this.probe.stop();
    this.heard(now);
    if (this.state === 'drain' && !this.last) this.drainEnd = now + this.drainTime;
  }
  get closeOutstanding() { return this.sender.closeFlight !== null && !this.receiver.closed; }
  get drainTime() { return Math.max(SHORTEST_DRAIN, this.userTimeout); }
  /** The connection drains when both halves have ended, until SHUTDOWN has been exchanged. */
  checkEnd(now) {
    const { sender, receiver } = this;
    const ours = sender.closeAcknowledged;
    if (this.dead || !(ours || (receiver.closed && (this.endRead || this.appClosed)))) return;
    if (this.state !== 'drain') {
      if (!sender.ended) sender.end();
      Object.assign(this, { state: 'drain', drainEnd: now + this.drainTime });
      if (this.shutdownCame) this.endSoon();
      else if (sender.closeFlight && !ours) this.shutdown.startLater(sender.rto, now); // the CLOSEs crossed
    }
    if (ours && !this.shutdowns && !this.shutdownCame) this.shutdown.start(sender.rto);
  }
  handleShutdown(now) {
    this.shutdownCame = true;
    if (this.state === 'drain' && this.shutdowns) this.die(null); // it answers ours
    else if (this.state === 'drain') this.endSoon();
    else if (this.closeOutstanding) {
      this.sender.closeTaken = true; // only our CLOSE can have ended the connection at the peer
      this.checkEnd(now);
    } else if (!this.receiver.closed) this.die(new Error('the peer ended the connection while packets were missing'));
    // Otherwise the application still gets every byte, and then the drain answers.
  }
  endSoon() { this.last = true; this.shutdown.start(Infinity); }
  /** While the route is lost, only the last SHUTDOWN leaves (6.5). */
  get shutdownDue() { return this.state === 'drain' && this.shutdown.owed && (this.last || !this.silent); }
  shutdownItem(now) {
    const bytes = this.packet(TYPE.SHUTDOWN, undefined, { attempt: this.last ? 0 : Math.min(this.shutdowns, 255) });
    this.shutdown.sent(now);
    this.shutdowns += 1;
    if (this.last) this.die(null);
    return { bytes, lost: () => this.shutdown.lost() };
  }
  /** When the drain ends: not before the user timeout has passed since the route was lost. */
  get drainEndsAt() { return Math.max(this.drainEnd, (this.routeLostSince ?? -Infinity) + this.userTimeout); }
  // What leaves: items {bytes, receipted(now), lost()}
  packet(type, values, more) {
    return encodePacket({ type, values, source: this.id, destination: this.peerId, ...more });
  }
  *control(now) {
    if (this.openingDue) yield this.openingItem(now);
    if (!this.silent && this.accepted) {
      const { receiver, pong } = this;
      if (receiver.ackAt() <= now)
        yield { bytes: this.packet(TYPE.ACK, receiver.makeAck(now)), lost: () => (receiver.ackNow = true) };
      this.pong = null;
      if (pong) yield { bytes: this.packet(TYPE.PONG, pong) };
      for (const [type, repeat] of [[TYPE.PING, this.ping], [TYPE.PROBE, this.probe]]) {
        if (!repeat.owed) continue;
        repeat.sent(now);
        yield { bytes: this.packet(type) };
      }
    }
    if (this.shutdownDue) yield this.shutdownItem(now);
  }
  /** One packet of the stream. */
  dataItem(flight, now, ids = {}) {
    const { sender } = this;
    const attempt = sender.attempted(flight, now);
    return {
      bytes: this.packet(flight.type, flight.payload, { sequence: flight.sequence, attempt: attempt.number, ...ids }),
      receipted: (at) => (attempt.receiptAt = at),
      lost: () => flight.latest === attempt && sender.gaveUp(flight),
    };
  }
  /** The peer's window is closed: data waits, nothing is in flight, and no byte of room is left (4.12). */
  get stuck() {
    const { ended, open, queued, oldest, windowEnd, sentBytes } = this.sender;
    return !ended && open && queued > 0 && !oldest && windowEnd <= sentBytes;
  }
  get pingAt() { return this.ping.running ? this.ping.next : this.lastHeard + this.settings.keepalive; }
  next(now) {
    if (this.dead) return Infinity;
    const ack = this.receiver.ackAt();
    const times = [this.connect.next, this.userTimeoutAt(), ack > now ? ack : Infinity];
    if (!this.silent) times.push(this.sender.next());
    if (this.state === 'open' && !this.silent) times.push(this.pingAt, this.stuck ? this.probe.next : Infinity);
    if (this.state === 'drain' && !this.last) times.push(this.drainEndsAt, this.silent ? Infinity : this.shutdown.next);
    return Math.min(...times);
  }
  handleTimeout(now) {
    this.connect.handleTimeout(now);
    if (!this.silent) {
      this.sender.handleTimeout(now);
      if (this.state === 'open') this.keepAlive(now);
      else if (!this.last) this.shutdown.handleTimeout(now);
    }
    if (this.state === 'drain' && !this.last && this.drainEndsAt <= now) this.endSoon();
    if (this.userTimeoutAt() <= now) this.abort(ABORT.USER_TIMEOUT, `no answer for ${this.userTimeout / 1000} s`);
  }
  keepAlive(now) {
    if (this.ping.running) this.ping.handleTimeout(now);
    else if (this.pingAt <= now) this.ping.start(this.sender.rto);
    if (!this.stuck) this.probe.stop();
    else if (this.probe.running) this.probe.handleTimeout(now);
    else this.probe.startLater(this.sender.rto, now);
  }
  /** When the user timeout ends the connection (4.15). A drain has an end of its own instead. */
  userTimeoutAt() {
    if (this.state === 'drain' || this.dead) return Infinity;
    const { connect, ping, probe, routeLostSince, attachmentLostSince, sender } = this;
    const since = [connect.since, routeLostSince, attachmentLostSince, ping.since, probe.since];
    const sentAt = sender.ended ? undefined : sender.oldest?.sentAt;
    if (sentAt !== undefined) since.push(Math.max(sentAt, sender.lastProgress));
    return Math.min(...since.filter((time) => time !== null)) + this.userTimeout;
  }
}
