// Packets that have a number and are not acknowledged, and every attempt to send them.

import { TYPE } from '../wire/packet.mjs';
import { seqAdd, seqDiff } from '../wire/serial.mjs';

/** One sequenced packet. `end` is the stream offset after its payload. */
export class Flight {
  constructor(type, sequence, payload, end) {
    this.type = type;
    this.sequence = sequence;
    this.payload = payload;
    this.length = type === TYPE.DATA ? payload.length : 0; // only DATA counts in windows (4.1)
    this.end = end;
    this.attempts = [];
    this.acknowledged = false;
    this.resend = false; // waits to be sent again
  }

  get latest() {
    return this.attempts[this.attempts.length - 1];
  }
}

/** The packets from the oldest unacknowledged one to the newest, in order of their numbers. */
export class Flights {
  constructor(first) {
    this.first = first; // the oldest number that is not acknowledged cumulatively
    this.next = first;
    this.list = [];
  }

  add(flight) {
    this.list.push(flight);
    this.next = seqAdd(this.next, 1);
  }

  get(sequence) {
    const index = seqDiff(sequence, this.first);
    return index >= 0 ? this.list[index] : undefined;
  }

  get cumulative() {
    return seqAdd(this.first, -1);
  }
  oldest() {
    return this.list.find((flight) => !flight.acknowledged);
  }
  *pending() {
    for (const flight of this.list) if (!flight.acknowledged) yield flight;
  }

  /** Remove everything up to `cumulative`, and return it. */
  release(cumulative) {
    const count = seqDiff(cumulative, this.first) + 1;
    if (count <= 0) return [];
    this.first = seqAdd(this.first, count);
    return this.list.splice(0, count);
  }

  clear() {
    this.list = [];
    this.first = this.next;
  }
}
