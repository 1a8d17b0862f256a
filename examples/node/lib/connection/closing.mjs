// How a connection ends: section 5. A connection drains when both halves have ended, until SHUTDOWN has been exchanged.

import { TYPE } from '../wire/packet.mjs';

const LONGEST = 60_000;
const SHORTEST_DRAIN = 60_000; // 5.7

export class Closing {
  constructor(connection) {
    this.connection = connection;
    this.attempts = 0; // SHUTDOWNs sent
    this.owed = false;
    this.at = Infinity;
    this.pause = null;
    this.drainEnd = Infinity;
    this.shutdownCame = false;
    this.last = false; // the connection is forgotten after the next SHUTDOWN
  }

  get closeOutstanding() {
    const { sender, receiver } = this.connection;
    return sender.closeFlight !== null && !receiver.closed;
  }

  /** Whether both halves have ended, by the definitions at the head of section 5. */
  get bothEnded() {
    const c = this.connection;
    if (c.sender.closeAcknowledged) return true;
    return c.receiver.closed && (c.endRead || c.appClosed);
  }

  /** The peer's CLOSE has come in order: 5.4. */
  peerClosed(now) {
    const c = this.connection;
    const unread = c.sender.end(c.receiver.closeSeen?.received);
    if (unread && !c.appClosed) {
      c.writeError = new Error('the peer closed the connection before it had read everything');
      c.event('reset');
    }
    this.check(now);
  }

  /** REJECTED(finished) proves that the peer has taken our CLOSE (5.7). */
  closeTaken(now) {
    const c = this.connection;
    c.sender.closeTaken = true;
    this.shutdownCame = true;
    this.check(now);
    c.die(null);
  }

  check(now) {
    const c = this.connection;
    if (c.dead || !this.bothEnded) return;
    if (c.state !== 'drain') this.drain(now);
    // 5.7: an endpoint whose CLOSE is acknowledged sends SHUTDOWN, even if that is only in the drain
    if (c.sender.closeAcknowledged && this.attempts === 0 && !this.shutdownCame) this.owed = true;
  }

  drain(now) {
    const c = this.connection;
    if (c.sender.closeAcknowledged && !c.sender.ended) c.sender.end();
    c.state = 'drain';
    c.event('ended');
    this.drainEnd = now + this.drainTime;
    if (this.shutdownCame) {
      this.owed = true;
      this.last = true;
      return;
    }
    if (c.sender.closeFlight && !c.sender.closeAcknowledged) this.at = now + c.sender.recovery.rto; // the CLOSEs crossed
  }

  get drainTime() {
    return Math.max(SHORTEST_DRAIN, this.connection.userTimeout);
  }

  /** A resume during the drain starts the drain time again. SHUTDOWN is repeated again, too. */
  resumed(now) {
    if (this.connection.state === 'drain' && !this.last) this.drainEnd = now + this.drainTime;
  }

  /** When the drain ends: not before the user timeout has passed since the route was lost. */
  get endsAt() {
    const { routeLostSince, userTimeout } = this.connection;
    return routeLostSince === null ? this.drainEnd : Math.max(this.drainEnd, routeLostSince + userTimeout);
  }

  handleShutdown(now) {
    const c = this.connection;
    this.shutdownCame = true;
    if (c.state === 'drain') return this.answer();
    if (this.closeOutstanding) {
      // Only our CLOSE can have ended the connection at the peer.
      c.sender.closeTaken = true;
      return this.check(now);
    }
    if (!c.receiver.closed) c.die(new Error('the peer ended the connection while packets were missing'));
    // Otherwise the application has not read everything yet. It still gets every byte, and then `drain` answers.
  }

  /** The peer's SHUTDOWN answers ours, or else we answer it now; then the connection is forgotten. */
  answer() {
    if (this.attempts > 0) return this.connection.die(null);
    this.owed = true;
    this.last = true;
  }

  /** While the route is lost, only the last SHUTDOWN leaves (6.5). */
  due() {
    const c = this.connection;
    return c.state === 'drain' && this.owed && (this.last || c.routeLostSince === null);
  }

  *packets(now) {
    const c = this.connection;
    if (!this.due()) return;
    this.owed = false;
    const bytes = c.packet(TYPE.SHUTDOWN, undefined, { attempt: this.last ? 0 : Math.min(this.attempts, 255) });
    this.attempts += 1;
    this.pause = Math.min(LONGEST, this.pause === null ? c.sender.recovery.rto : this.pause * 2);
    this.at = now + this.pause;
    if (this.last) c.die(null);
    yield {
      bytes,
      lost: () => {
        if (!c.dead) this.owed = true;
      },
    };
  }

  nextTimeout() {
    const c = this.connection;
    if (c.state !== 'drain') return Infinity;
    return Math.min(this.last ? Infinity : this.endsAt, this.owed || c.silent ? Infinity : this.at);
  }

  handleTimeout(now) {
    const c = this.connection;
    if (c.state !== 'drain') return;
    if (!c.silent && this.at <= now) this.owed = true;
    if (this.last || this.endsAt > now) return;
    this.owed = true; // the last SHUTDOWN leaves, even if none has left before
    this.last = true;
  }
}
