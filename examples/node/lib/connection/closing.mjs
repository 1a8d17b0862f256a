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
    this.drainEnd = now + Math.max(SHORTEST_DRAIN, c.userTimeout);
    if (this.shutdownCame) {
      this.owed = true;
      this.last = true;
      return;
    }
    if (c.sender.closeFlight && !c.sender.closeAcknowledged) this.at = now + c.sender.recovery.rto; // the CLOSEs crossed
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

  due() {
    return this.connection.state === 'drain' && this.owed;
  }

  *packets(now) {
    const c = this.connection;
    if (!this.due()) return;
    this.owed = false;
    const bytes = c.packet(TYPE.SHUTDOWN, undefined, { attempt: Math.min(this.attempts, 255) });
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
    return Math.min(this.drainEnd, this.owed || c.silent ? Infinity : this.at);
  }

  handleTimeout(now) {
    const c = this.connection;
    if (c.state !== 'drain') return;
    if (!c.silent && this.at <= now) this.owed = true;
    if (this.drainEnd > now) return;
    if (c.silent || this.attempts === 0) return c.die(null);
    this.owed = true; // one more leaves when the drain ends
    this.last = true;
    this.drainEnd = Infinity;
  }
}
