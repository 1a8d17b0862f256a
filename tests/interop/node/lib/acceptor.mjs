// The acceptor's side of a connection, and how an endpoint answers CONNECT (sections 3 and 6.6).
import { Connection } from './connection.mjs';
import { PAYLOAD, REJECT, TARGET, TYPE } from './wire.mjs';
const MEMORY = 4 * 60_000; // 3.3

export class Acceptor extends Connection {
  constructor(settings, identity, now, { connect, packet }) {
    const { routeKey } = connect;
    super(settings, { ...identity, routeKey, peerId: packet.source }, now, identity.initial); // the number of ACCEPTED
    Object.assign(this, { state: 'open', shown: false, resumedOwed: false, repeats: 0 }); // `shown`: to the application
    this.receiver.start(packet, now);
    Object.assign(this.sender, { open: true, windowEnd: connect.window });
    this.applyPeerOptions(connect.options);
    this.flight = this.sender.number(TYPE.ACCEPTED, PAYLOAD[TYPE.ACCEPTED].encode(this.answer(0)));
    this.flight.resend = true;
  }
  answer(resumed) {
    const options = { ...this.settings.options, endpointId: this.endpointId };
    return { routeKey: this.routeKey, resumed, window: this.receiver.window(), options };
  }
  get openingDue() { return this.resumedOwed || (this.flight.resend && !this.silent && !this.sender.heldUntil); }
  openingItem(now) {
    const { flight } = this;
    const ids = { source: this.peerId, destination: this.id }; // 2.2
    if (!flight.acknowledged && !this.resumedOwed) return this.dataItem(flight, now, ids);
    // The answer to a repeated CONNECT or to a resume is no new packet of the stream (6.6).
    const values = this.resumedOwed ? this.answer(1) : flight.payload;
    this.resumedOwed = false;
    flight.resend = false;
    this.repeats += 1;
    const more = { ...ids, sequence: this.initial, attempt: flight.attempts.length + this.repeats };
    return { bytes: this.packet(TYPE.ACCEPTED, values, more), lost: () => (flight.resend = true) };
  }
  /** The CONNECT of a living connection (3.3, 6.6). The endpoint has checked user, route key and ids. */
  handleOpening(packet, connect, now) {
    if (packet.type !== TYPE.CONNECT) return;
    if (!(connect.resume & 1)) {
      if (this.routeLostSince !== null) this.routeBound(now); // such an initiator cannot send a resume
      this.flight.resend = true;
      return;
    }
    this.resumedOwed = true;
    if (this.resumeAttempt === packet.attempt) return; // the same packet twice
    Object.assign(this, { resumeAttempt: packet.attempt, shown: true });
    this.routeBound(now);
  }
  routeLost() { this.resumedOwed = false; }
  freshAttach(now) { this.loseRoute(now); }
  /** A packet of the initiator shows that the route is bound: the wait for a resume ends (6.7). */
  heard(now, type) {
    super.heard(now);
    if (type === undefined) return;
    this.shown ||= type !== TYPE.ABORT && type !== TYPE.SHUTDOWN; // 3.5
    if (this.routeLostSince !== null) this.routeBound(now);
  }
}

/** Answers CONNECT by the services of an endpoint (3.10), and a repeated CONNECT as before (3.3). */
export class Accepting {
  constructor(endpoint) {
    // user and route key -> connection, and -> {reason, text, until}
    Object.assign(this, { endpoint, live: new Map(), ended: new Map() });
  }
  handle(packet, now) {
    const connect = PAYLOAD[TYPE.CONNECT].decode(packet.payload);
    const key = `${connect.routeKey.toString('hex')} ${connect.options.user ?? ''}`;
    const resume = connect.resume & 1;
    const live = this.live.get(key);
    if (live && packet.source === live.peerId && (!resume || packet.destination === live.id))
      return live.handle(packet, now);
    const known = live || (resume && !this.ended.has(key)) ? { reason: REJECT.GONE } : this.ended.get(key); // 6.6
    const refusal = known ?? this.refusal(connect);
    if (!refusal) return this.live.set(key, this.endpoint.accept(connect, packet, key, now));
    if (!known) this.ended.set(key, { ...refusal, until: now + MEMORY });
    const values = { routeKey: connect.routeKey, ...refusal, options: { versions: [1, 1] } };
    return this.endpoint.post({ type: TYPE.REJECTED, source: packet.source, values }, true);
  }
  refusal({ options, kind, host }) {
    const [low, high] = options.versions ?? [1, 1];
    if (low > 1 || high < 1) return { reason: REJECT.VERSION };
    if (kind === TARGET.TCP) return { reason: REJECT.DENIED, text: 'this endpoint is not an exit' };
    return this.endpoint.services.get(host)?.values.state === 1 ? null : { reason: REJECT.NO_SERVICE };
  }
  /** Forget a connection, and note how 3.3 answers a late CONNECT from now on. */
  forget({ key, error }, now) {
    if (!this.live.delete(key)) return;
    this.ended.set(key, { reason: error ? REJECT.GONE : REJECT.FINISHED, until: now + MEMORY });
    for (const [old, { until }] of this.ended) if (until <= now) this.ended.delete(old);
  }
}
