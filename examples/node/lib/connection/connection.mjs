// One connection of an endpoint. It holds no clock and no socket: callers pass the time (ms) in, and take packets and
// events out. The two halves are sender.mjs and receiver.mjs; opening and closing are their own modules.

import { TYPE, encodePacket } from '../wire/packet.mjs';
import { ABORT, ABORT_TEXT, encodeOption } from '../wire/payloads.mjs';
import { arrive } from './arriving.mjs';
import { Closing } from './closing.mjs';
import { Confirming } from './confirming.mjs';
import { Keepalive } from './keepalive.mjs';
import { InitiatorOpening, AcceptorOpening } from './opening.mjs';
import { Receiver } from './receiver.mjs';
import { Sender } from './sender.mjs';

const WRITE_BUFFER = 256 * 1024;
const EARLY_DATA = 64 * 1024; // 3.6
const LONGEST_PEER_PULL = 60_000; // 4.6

export class Connection {
  /**
   * settings: {window, largestPacket, keepalive, userTimeout, pullInterval, initialEdge, lanes}, times in ms.
   * identity: {role, id, peerId, initial, routeKey, kind, host, port, peer (decoded CONNECT and its packet), endpointId}
   */
  constructor(settings, identity, now) {
    Object.assign(this, identity);
    this.settings = settings;
    this.peerId = identity.peerId ?? 0;
    this.userTimeout = settings.userTimeout;
    this.peerLargest = settings.largestPacket;
    this.sender = new Sender(this.initial, settings.initialEdge);
    this.sender.recovery.ownPull = settings.pullInterval;
    this.sender.recovery.settings = settings;
    this.sender.recovery.lastProgress = now;
    this.receiver = new Receiver(settings.window, settings.largestPacket, this.role === 'acceptor' ? EARLY_DATA : 0);
    this.events = [];
    this.state = 'connecting'; // then open, drain, dead
    this.error = null;
    this.appClosed = false;
    this.endRead = false;
    this.routeLostSince = null;
    this.lastHeard = now;
    this.deficit = 0;
    this.optionVersion = 0; // of the peer's last OPTION
    this.optionSent = 0; // of our last OPTION
    this.malformed = 0;
    this.farewell = null; // the ABORT that the endpoint sends once (4.15, 5.8)
    this.opening = this.role === 'initiator' ? new InitiatorOpening(this, now) : new AcceptorOpening(this, now);
    this.keepalive = new Keepalive(this, now);
    this.closing = new Closing(this);
    this.confirming = new Confirming(this);
  }

  get dead() {
    return this.state === 'dead';
  }
  get accepted() {
    return this.state === 'open' || this.state === 'drain';
  }
  get writable() {
    return this.sender.queued < WRITE_BUFFER && !this.sender.ended;
  }
  event(name) {
    if (!this.events.includes(name)) this.events.push(name);
  }

  // --- what the application does ---

  write(bytes) {
    if (this.dead || this.appClosed || this.sender.ended || this.sender.wantFinish) return false;
    this.sender.write(bytes);
    return this.writable;
  }

  /** Returns the next bytes, or null. After null, `atEnd` says whether the stream has ended. */
  read(now) {
    const bytes = this.receiver.read();
    if (!bytes && this.receiver.closed) {
      this.endRead = true; // 5.5
      this.closing.check(now);
    }
    return bytes;
  }

  get atEnd() {
    return this.receiver.finished && !this.receiver.unread.length;
  }

  /** Ask for the event "acknowledged": it follows when the peer has everything that was written until now. */
  confirm() {
    if (!this.dead) this.confirming.start();
  }

  /** End our direction. */
  finish() {
    this.sender.wantFinish = true;
  }

  /** End both directions (5.2). What the application has not read is discarded. */
  close(now) {
    if (this.appClosed || this.dead) return;
    this.appClosed = true;
    this.receiver.discard();
    if (!this.receiver.closed) {
      this.sender.wantClose = true;
      this.sender.closeReceived = this.receiver.cumulative ?? undefined;
    }
    this.closing.check(now);
  }

  abort(now, reason = ABORT.APPLICATION, text = '') {
    if (this.dead) return;
    // 3.12: an initiator whose CONNECT is unanswered forgets the connection without a packet
    if (this.peerId) this.farewell = { reason, text };
    this.die(new Error(text || ABORT_TEXT[reason]));
  }

  /** The connection is over. The application gets the error, if there is one, except during a drain (5.8). */
  die(error) {
    if (this.dead) return;
    const draining = this.state === 'drain';
    this.state = 'dead';
    if (error && !draining) {
      this.error = error;
      this.event('lost');
    }
    this.event('forgotten');
  }

  // --- what arrives ---

  /** A packet for this connection whose ids the endpoint has checked (3.8). */
  handle(packet, now) {
    if (!this.dead) arrive(this, packet, now);
  }

  /** A packet of the peer has come: the route is bound (6.7), and our PING counts as answered (4.16). */
  heard(now) {
    this.lastHeard = now;
    this.keepalive.heard();
    this.opening.heard?.(now);
  }

  /** Options of CONNECT, ACCEPTED or OPTION. An absent one changes nothing. */
  applyPeerOptions(options) {
    if (options.largestPacket !== undefined) this.peerLargest = options.largestPacket;
    if (options.userTimeout) this.userTimeout = Math.min(this.settings.userTimeout, options.userTimeout); // 4.15
    if (options.pullInterval !== undefined)
      this.sender.recovery.peerPull = Math.min(LONGEST_PEER_PULL, options.pullInterval);
  }

  /** Our pull interval has changed: the peer's timers depend on it, so tell the peer (2.7). */
  tellPullInterval(pullInterval) {
    if (this.dead || this.sender.recovery.ownPull === pullInterval) return;
    this.sender.recovery.ownPull = pullInterval;
    this.optionSent += 1;
    this.sender.option = encodeOption({ version: this.optionSent, options: { pullInterval } });
  }

  /** The relay has no route any more: the initiator resumes it, the acceptor waits (6.5, 6.7). */
  loseRoute(now) {
    if (this.dead || !this.accepted || this.routeLostSince !== null) return;
    this.routeLostSince = now;
    this.sender.voidReceipts();
    this.opening.routeLost(now);
  }

  routeBound(now) {
    this.routeLostSince = null;
    this.sender.resume(now);
    this.receiver.ackNow = true; // 6.6: each sends an ACK
    this.keepalive.reset(now);
    this.closing.resumed(now);
  }

  // --- what leaves ---

  packet(type, payload, more = {}) {
    return encodePacket({ type, payload, source: this.id, destination: this.peerId, ...more });
  }

  get silent() {
    return this.routeLostSince !== null || this.dead;
  }

  hasControl(now) {
    if (this.dead) return false;
    if (this.opening.due() || this.closing.due()) return true;
    if (this.silent) return false;
    return (this.accepted && this.receiver.ackAt() <= now) || this.keepalive.due() || this.confirming.due();
  }

  /** Control packets that leave now: items {bytes, receipted(now), lost(now)}. */
  *control(now) {
    yield* this.opening.packets(now);
    if (!this.silent && this.accepted) yield* this.openControl(now);
    yield* this.closing.packets(now);
  }

  *openControl(now) {
    if (this.receiver.ackAt() <= now) {
      yield {
        bytes: this.packet(TYPE.ACK, this.receiver.makeAck(now)),
        lost: () => {
          this.receiver.ackNow = true;
        },
      };
    }
    yield* this.keepalive.packets(now);
    yield* this.confirming.packets();
  }

  hasData() {
    return !this.silent && this.state !== 'drain' && this.sender.hasWork();
  }
  get waiting() {
    return this.sender.queued;
  }

  /** The item of one packet of the stream: `flight` again, or a new one with at most `limit` bytes of payload. */
  dataItem(flight, now) {
    const attempt = this.sender.attempted(flight, now);
    return {
      bytes: this.packet(flight.type, flight.payload, { sequence: flight.sequence, attempt: attempt.number }),
      receipted: (at) => this.sender.recovery.receipted(flight, attempt, at),
      lost: () => this.sender.gaveUp(flight, attempt),
    };
  }

  newData(limit, now) {
    const flight = this.sender.nextNew(Math.min(limit, this.peerLargest - 24));
    return flight && this.dataItem(flight, now);
  }

  // --- time ---

  nextTimeout(now) {
    if (this.dead) return Infinity;
    const ack = this.receiver.ackAt();
    return Math.min(
      ack > now ? ack : Infinity,
      this.opening.nextTimeout(),
      this.keepalive.nextTimeout(),
      this.closing.nextTimeout(),
      this.silent ? Infinity : this.sender.recovery.nextTimeout(now),
      this.userTimeoutAt(),
    );
  }

  handleTimeout(now) {
    if (this.dead) return;
    this.opening.handleTimeout(now);
    this.keepalive.handleTimeout(now);
    this.closing.handleTimeout(now);
    if (!this.silent) this.sender.recovery.handleTimeout(now);
    if (this.userTimeoutAt() <= now)
      this.abort(now, ABORT.USER_TIMEOUT, `nothing was answered for ${Math.round(this.userTimeout / 1000)} s`);
  }

  /** Returns when the user timeout ends the connection (4.15). A drain has an end of its own instead. */
  userTimeoutAt() {
    if (this.state === 'drain' || this.dead) return Infinity;
    const since = [this.opening.since, this.routeLostSince, this.attachmentLostSince, this.keepalive.since];
    const oldest = this.sender.ended ? undefined : this.sender.flights.oldest();
    if (oldest?.sentAt !== undefined) since.push(Math.max(oldest.sentAt, this.sender.recovery.lastProgress));
    const earliest = Math.min(...since.filter((time) => time !== null && time !== undefined));
    return earliest + this.userTimeout;
  }
}
