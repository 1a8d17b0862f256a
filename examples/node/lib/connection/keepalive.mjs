// PING when nothing comes (4.16) and PROBE when the window is closed (4.12).

import { TYPE } from '../wire/packet.mjs';

const LONGEST = 60_000;

export class Keepalive {
  constructor(connection, now) {
    this.connection = connection;
    this.pong = null; // the payload of a PING to answer
    this.reset(now);
  }

  reset(now) {
    this.pingOwed = false;
    this.pingSince = null;
    this.pingPause = null;
    this.pingAt = null;
    this.stopProbing();
    this.startedAt = now;
  }

  stopProbing() {
    this.probeOwed = false;
    this.probeSince = null;
    this.probePause = null;
    this.probeAt = null;
  }

  heard() {
    this.pingOwed = false;
    this.pingSince = null;
    this.pingPause = null;
    this.pingAt = null;
  }

  /** The time since which a PING or a PROBE is unanswered, for the user timeout; null if none is. */
  get since() {
    if (this.pingSince === null) return this.probeSince;
    return this.probeSince === null ? this.pingSince : Math.min(this.pingSince, this.probeSince);
  }

  /** The peer's window is closed: data waits, nothing is in flight, and no byte of room is left (4.12). */
  get stuck() {
    const { sender } = this.connection;
    return (
      !sender.ended &&
      !sender.early &&
      sender.queued > 0 &&
      !sender.flights.oldest() &&
      sender.windowEnd <= sender.sentBytes
    );
  }

  probeAnswered() {
    this.probeSince = null; // answered, even if the window is still closed
  }

  due() {
    return this.connection.accepted && (this.pong !== null || this.pingOwed || this.probeOwed);
  }

  *packets() {
    const c = this.connection;
    if (this.pong) {
      yield { bytes: c.packet(TYPE.PONG, this.pong) };
      this.pong = null;
    }
    if (this.pingOwed) {
      this.pingOwed = false;
      yield { bytes: c.packet(TYPE.PING, Buffer.from('node')) };
    }
    if (this.probeOwed) {
      this.probeOwed = false;
      yield { bytes: c.packet(TYPE.PROBE) };
    }
  }

  nextTimeout() {
    const c = this.connection;
    if (c.state !== 'open' || c.silent) return Infinity;
    const ping = this.pingAt ?? Math.max(c.lastHeard, this.startedAt) + c.settings.keepalive;
    return Math.min(ping, this.stuck ? (this.probeAt ?? -Infinity) : Infinity);
  }

  handleTimeout(now) {
    const c = this.connection;
    if (c.state !== 'open' || c.silent) return;
    const { rto } = c.sender.recovery;
    if ((this.pingAt ?? Math.max(c.lastHeard, this.startedAt) + c.settings.keepalive) <= now) {
      this.pingOwed = true;
      this.pingSince ??= now;
      this.pingPause = Math.min(LONGEST, this.pingPause === null ? rto : this.pingPause * 2);
      this.pingAt = now + this.pingPause;
    }
    if (!this.stuck) this.stopProbing();
    else if (this.probeAt === null) {
      this.probePause = rto;
      this.probeAt = now + rto;
    } else if (this.probeAt <= now) {
      this.probeOwed = true;
      this.probeSince ??= now;
      this.probePause = Math.min(LONGEST, this.probePause * 2);
      this.probeAt = now + this.probePause;
    }
  }
}
