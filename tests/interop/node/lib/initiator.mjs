// The initiator's side of a connection: how it opens (section 3) and how its route is resumed (6.5 to 6.8).
import { Connection } from './connection.mjs';
import { ABORT, REJECT, REJECT_TEXT, TYPE, seqAdd } from './wire.mjs';
const [HELD_PACKETS, HELD_BYTES] = [64, 256 * 1024]; // 3.7
const AFTER_FRESH_ATTACH = 10; // repeats of CONNECT at half a second (3.1)

export class Initiator extends Connection {
  constructor(settings, identity, now) {
    super(settings, identity, now, seqAdd(identity.initial, 1)); // CONNECT has the first number
    this.connect.start(1000, { since: now });
    Object.assign(this, { attempts: 0, quick: 0, held: [], heldBytes: 0 }); // `quick`: repeats at half a second
  }
  get resuming() { return this.accepted && this.routeLostSince !== null; }
  get openingDue() { return this.connect.owed && !this.dead; }
  openingItem(now) {
    const { connect, resuming, routeKey, kind, host, port, attempts } = this;
    connect.sent(now);
    if (this.quick > 0 && (this.quick -= 1) === 0) Object.assign(connect, { pause: 1000, factor: 2 });
    const options = { ...this.settings.options, endpointId: resuming ? this.peerEndpoint : undefined };
    const values = { routeKey, resume: Number(resuming), kind, port, host, window: this.receiver.window(), options };
    this.attempts += 1;
    const bytes = this.packet(TYPE.CONNECT, values, { sequence: this.initial, attempt: attempts });
    return { bytes, lost: () => connect.lost() };
  }
  /** A fresh attach (6.3): what the relay knew of this connection is lost. */
  freshAttach(now) {
    if (this.state !== 'connecting') return this.loseRoute(now);
    if (this.attempts === 0) return undefined; // nothing was sent yet
    this.quick = AFTER_FRESH_ATTACH;
    return this.connect.start(500, { factor: 1, since: this.connect.since });
  }
  routeLost() { this.connect.start(1000, { factor: 1 }); }
  /** 3.7: packets that overtook ACCEPTED. */
  hold(packet) {
    if (this.held.length >= HELD_PACKETS || this.heldBytes + packet.payload.length > HELD_BYTES) return;
    this.held.push(packet);
    this.heldBytes += packet.payload.length;
  }
  handleOpening(packet, values, now) {
    if (!values.routeKey.equals(this.routeKey)) return; // 3.8
    if (packet.type === TYPE.REJECTED) this.rejected(values, now);
    else if (this.state === 'connecting') this.opened(packet, values, now);
    else this.acceptedAgain(packet, values, now);
  }
  opened(packet, { window, options }, now) {
    this.connect.stop();
    Object.assign(this, { peerId: packet.destination, peerEndpoint: options.endpointId, state: 'open' });
    if (options.versions[0] > 1 || options.versions[1] < 1)
      return this.abort(ABORT.PROTOCOL, 'the acceptor chose an unknown version');
    this.receiver.start(packet, now);
    this.receiver.ackNow = true; // 3.5
    this.applyPeerOptions(options);
    Object.assign(this.sender, { open: true, windowEnd: window });
    this.heard(now);
    for (const one of this.held.splice(0)) if (one.source === this.peerId) this.handle(one, now);
    return undefined;
  }
  acceptedAgain(packet, { options }, now) {
    if (packet.destination !== this.peerId || !options.endpointId.equals(this.peerEndpoint)) {
      this.stray = packet; // 6.8: the endpoint answers it as 3.9 says
      return this.die(new Error('the peer is gone: another acceptor has answered'));
    }
    this.heard(now);
    this.connect.stop();
    this.receiver.ackNow = true;
    return this.routeLostSince === null ? undefined : this.routeBound(now);
  }
  rejected({ reason, text }, now) {
    const error = new Error(text || REJECT_TEXT[reason] || `refused with reason ${reason}`);
    if (this.state === 'connecting') return this.die(error);
    if (!this.resuming) return undefined; // it answers a CONNECT that was accepted meanwhile (6.8)
    if (reason === REJECT.FINISHED && this.closeOutstanding) {
      this.sender.closeTaken = true; // 5.7
      this.checkEnd(now);
      return this.die(null);
    }
    return [REJECT.GONE, REJECT.DENIED, REJECT.FINISHED].includes(reason) ? this.die(error) : undefined;
  }
}
