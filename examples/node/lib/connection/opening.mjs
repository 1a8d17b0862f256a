// How a connection opens and how its route is resumed: sections 3 and 6.5 to 6.8.

import { TYPE } from '../wire/packet.mjs';
import {
  REJECT,
  REJECT_TEXT,
  decodeAccepted,
  decodeConnect,
  decodeRejected,
  encodeAccepted,
  encodeConnect,
} from '../wire/payloads.mjs';

const HELD_PACKETS = 64; // 3.7
const HELD_BYTES = 256 * 1024;
const LONGEST_PAUSE = 60_000; // 3.1

export class InitiatorOpening {
  constructor(connection, now) {
    this.connection = connection;
    this.since = now; // CONNECT is unanswered since this time
    this.attempts = 0;
    this.owed = true;
    this.pause = 1000;
    this.quick = 0; // how many repeats at half a second are left (3.1)
    this.at = Infinity;
    this.held = [];
    this.heldBytes = 0;
  }

  get resuming() {
    return this.connection.accepted && this.connection.routeLostSince !== null;
  }
  get asking() {
    return this.connection.state === 'connecting' || this.resuming;
  }
  due() {
    return this.owed && this.asking;
  }

  *packets(now) {
    if (!this.due()) return;
    this.owed = false;
    this.at = now + this.nextPause();
    const bytes = this.connect();
    this.attempts += 1;
    yield {
      bytes,
      lost: () => {
        if (this.asking) this.owed = true;
      },
    };
  }

  nextPause() {
    if (this.resuming) return 1000; // 6.5
    if (this.quick > 0) {
      this.quick -= 1;
      return 500;
    }
    const pause = this.pause;
    this.pause = Math.min(LONGEST_PAUSE, this.pause * 2);
    return pause;
  }

  connect() {
    const c = this.connection;
    const options = c.settings.options();
    if (this.resuming) options.endpointId = c.peerEndpoint; // 2.1
    const payload = encodeConnect({
      routeKey: c.routeKey,
      resume: this.resuming,
      kind: c.kind,
      port: c.port,
      host: c.host,
      window: c.receiver.window(),
      options,
    });
    return c.packet(TYPE.CONNECT, payload, { sequence: c.initial, attempt: this.attempts });
  }

  /** A fresh attach (6.3): what the relay knew of this connection is lost. */
  freshAttach(now) {
    const c = this.connection;
    if (c.state !== 'connecting') return c.loseRoute(now);
    if (this.attempts === 0) return; // nothing was sent yet, so this is not a repeat
    this.owed = true;
    this.quick = 10;
    this.pause = 1000;
    c.sender.resume(now); // early data was lost with the relay
  }

  routeLost() {
    this.owed = true;
    this.at = Infinity;
  }

  /** 3.7: packets that overtook ACCEPTED. */
  hold(packet) {
    if (this.held.length >= HELD_PACKETS || this.heldBytes + packet.payload.length > HELD_BYTES) return;
    this.held.push(packet);
    this.heldBytes += packet.payload.length;
  }

  handle(packet, now) {
    if (packet.type === TYPE.ACCEPTED) this.handleAccepted(packet, decodeAccepted(packet.payload), now);
    else if (packet.type === TYPE.REJECTED) this.handleRejected(decodeRejected(packet.payload), now);
  }

  handleAccepted(packet, accepted, now) {
    const c = this.connection;
    if (!accepted.routeKey.equals(c.routeKey)) {
      c.malformed += 1;
      return;
    } // 3.8
    if (c.state === 'connecting') return this.opened(packet, accepted, now);
    if (packet.destination !== c.peerId || !accepted.options.endpointId.equals(c.peerEndpoint)) {
      c.stray = packet; // 6.8: the endpoint answers it as 3.9 says
      return c.die(new Error('the peer is gone: another acceptor has answered'));
    }
    c.heard(now);
    if (c.routeLostSince !== null) c.routeBound(now);
    c.receiver.ackNow = true;
  }

  opened(packet, { window, options }, now) {
    const c = this.connection;
    if (options.versions[0] > 1 || options.versions[1] < 1)
      return c.abort(now, 5, 'the acceptor chose an unknown version');
    c.peerId = packet.destination;
    c.peerEndpoint = options.endpointId;
    c.state = 'open';
    this.since = null;
    c.receiver.start(packet.sequence, packet.attempt, now);
    c.receiver.ackNow = true; // 3.5
    c.applyPeerOptions(options);
    c.sender.opened(window, now);
    c.heard(now);
    c.event('open');
    c.event('writable');
    const held = this.held;
    this.held = [];
    for (const one of held) if (one.source === c.peerId) c.handle(one, now);
  }

  handleRejected({ routeKey, reason, text }, now) {
    const c = this.connection;
    if (!routeKey.equals(c.routeKey)) {
      c.malformed += 1;
      return;
    }
    const error = Object.assign(new Error(text || REJECT_TEXT[reason] || `refused with reason ${reason}`), {
      reject: reason,
    });
    if (c.state === 'connecting') return c.die(error);
    if (!this.resuming) return; // this answers a CONNECT that was accepted or resumed meanwhile
    if (reason === REJECT.FINISHED && c.closing.closeOutstanding) return c.closing.closeTaken(now); // 5.7
    if (reason === REJECT.GONE || reason === REJECT.DENIED || reason === REJECT.FINISHED) c.die(error); // 6.8
  }

  nextTimeout() {
    return this.asking && !this.owed ? this.at : Infinity;
  }
  handleTimeout(now) {
    if (this.asking && this.at <= now) this.owed = true;
  }
}

export class AcceptorOpening {
  /** The connection answers `connection.peer` = {connect, packet} at once with ACCEPTED. */
  constructor(connection, now) {
    this.connection = connection;
    this.since = null;
    this.shown = false; // 3.5: the application sees the connection only after the initiator's next packet
    this.resumedOwed = false;
    this.resumeAttempt = null;
    const { connect, packet } = connection.peer;
    connection.state = 'open';
    connection.receiver.start(packet.sequence, packet.attempt, now);
    connection.sender.windowEnd = connect.window;
    connection.applyPeerOptions(connect.options);
    this.flight = connection.sender.addAccepted(connection.initial, this.payload(false));
  }

  payload(resumed) {
    const c = this.connection;
    const options = { ...c.settings.options(), endpointId: c.endpointId };
    return encodeAccepted({ routeKey: c.routeKey, resumed, window: c.receiver.window(), options });
  }

  due() {
    const c = this.connection;
    // ACCEPTED is sequenced, so 4.10 pauses it; CONNECT has repeats of its own (3.1)
    return (this.flight.resend && !c.silent && !c.sender.held) || this.resumedOwed;
  }

  *packets(now) {
    const c = this.connection;
    if (!this.due()) return;
    if (this.flight.acknowledged || this.resumedOwed) {
      yield this.answerAgain();
      return;
    }
    const attempt = c.sender.attempted(this.flight, now);
    yield {
      bytes: this.encode(this.flight.payload, attempt.number),
      receipted: (at) => c.sender.recovery.receipted(this.flight, attempt, at),
      lost: () => c.sender.gaveUp(this.flight, attempt),
    };
  }

  /** Answer a repeated CONNECT or a resume. Neither answer is a new packet of the stream (6.6). */
  answerAgain() {
    const resumed = this.resumedOwed;
    this.resumedOwed = false;
    this.flight.resend = false;
    this.repeats = (this.repeats ?? this.flight.attempts.length) + 1;
    return {
      bytes: this.encode(resumed ? this.payload(true) : this.flight.payload, this.repeats),
      lost: () => {
        this.flight.resend = true;
      },
    };
  }

  // 2.2: the source of ACCEPTED is the initiator's id
  encode(payload, attempt) {
    const c = this.connection;
    return c.packet(TYPE.ACCEPTED, payload, { source: c.peerId, destination: c.id, sequence: c.initial, attempt });
  }

  /** Handle the CONNECT of a living connection (3.3, 6.6). The endpoint has checked user and route key. */
  handle(packet, now) {
    if (packet.type !== TYPE.CONNECT) return;
    const c = this.connection;
    const connect = decodeConnect(packet.payload);
    if (!connect.resume) {
      // The initiator has never seen ACCEPTED. This answer binds the route, so a wait for a resume, which such an
      // initiator cannot send, ends here.
      if (c.routeLostSince !== null) c.routeBound(now);
      this.flight.resend = true;
      return;
    }
    this.resumedOwed = true;
    if (this.resumeAttempt === packet.attempt) return; // the same packet twice
    this.resumeAttempt = packet.attempt;
    this.heard(now, true);
    c.lastHeard = now;
    c.routeBound(now);
  }

  routeLost() {
    this.resumedOwed = false;
  }
  freshAttach(now) {
    this.connection.loseRoute(now);
  }

  /** A packet of the initiator came over a bound route: the wait for a resume ends (6.7). */
  heard(now, resume = false) {
    const c = this.connection;
    if (!this.shown) {
      this.shown = true;
      c.event('open');
    }
    if (!resume && c.routeLostSince !== null) c.routeBound(now);
  }

  nextTimeout() {
    return Infinity;
  }
  handleTimeout() {}
}
