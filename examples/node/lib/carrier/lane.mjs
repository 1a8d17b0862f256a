// One lane (7.3): the exchange in flight, and pieces of packets in both directions (7.6).

import { Incoming } from './pieces.mjs';

export class Lane {
  constructor(index) {
    this.index = index;
    this.number = 0;
    this.serialReceived = 0;
    this.current = null; // the exchange in flight
    this.outgoing = null; // pieces still to be sent
    this.incoming = new Incoming();
  }

  get idle() {
    return !this.current && !this.outgoing;
  }

  /** Give up the exchange in flight (4.10). */
  giveUp(now) {
    const { current } = this;
    if (!current) return;
    current.request.stop();
    current.cancelEvidence?.();
    this.current = null;
    current.batch?.lost(now);
  }

  /** Give up the packet of which some pieces have not left. */
  giveUpPieces(now) {
    this.outgoing?.batch.lost(now);
    this.outgoing = null;
  }
}
