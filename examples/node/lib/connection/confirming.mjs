// An application that waits until what it has written is acknowledged; PROBE spares it a delayed ACK (4.17).

import { TYPE } from '../wire/packet.mjs';

export class Confirming {
  constructor(connection) {
    this.connection = connection;
    this.target = null; // the application waits for everything before this offset of the stream
    this.probeOwed = false;
  }

  /** The event "acknowledged" follows when the peer has everything that was written until now. */
  start() {
    const { sender } = this.connection;
    this.target = sender.sentBytes + sender.queued;
    this.probeOwed = true;
    this.check();
  }

  get reached() {
    const { sender } = this.connection;
    if (sender.sentBytes < this.target) return false;
    for (const flight of sender.flights.pending())
      if (flight.length && flight.end - flight.length < this.target) return false;
    return true;
  }

  check() {
    if (this.target === null || !this.reached) return;
    this.target = null;
    this.probeOwed = false;
    this.connection.event('acknowledged');
  }

  /** Whether PROBE may leave: in the batch of the last packet that the application waits for, or later. */
  due() {
    const c = this.connection;
    return this.probeOwed && c.state === 'open' && !c.silent && c.sender.sentBytes >= this.target;
  }

  /** This PROBE is not repeated: without it, the ACK comes a little later. */
  *packets() {
    if (!this.due()) return;
    this.probeOwed = false;
    yield { bytes: this.connection.packet(TYPE.PROBE) };
  }
}
