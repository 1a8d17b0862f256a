// Packets that are larger than a body travel in pieces: 7.6.

/** The pieces of one packet, to be sent one after another on one lane. */
export class Outgoing {
  constructor(packet, batch) {
    this.packet = packet;
    this.batch = batch;
    this.offset = 0;
  }

  next(room) {
    const offset = this.offset;
    const bytes = this.packet.subarray(offset, offset + room);
    this.offset += bytes.length;
    return { offset, bytes };
  }

  get done() {
    return this.offset >= this.packet.length;
  }
}

/** What a lane holds of a packet that comes in pieces. */
export class Incoming {
  constructor() {
    this.clear();
  }

  clear() {
    this.parts = [];
    this.length = 0;
  }

  get open() {
    return this.length > 0;
  }

  /** Take a piece; returns the whole packet once it is complete, else null. */
  take(offset, bytes) {
    if (offset !== this.length) this.clear(); // the piece does not continue the ones that are held
    if (offset !== this.length || !bytes.length) return null;
    this.parts.push(Buffer.from(bytes));
    this.length += bytes.length;
    const head = this.length >= 8 ? Buffer.concat(this.parts.slice(0, 8)) : null;
    if (!head || this.length < head.readUInt32BE(4)) return null;
    const whole = Buffer.concat(this.parts);
    this.clear();
    return whole;
  }
}
