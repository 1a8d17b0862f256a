// A small relay for two endpoints, in simulated time: lanes, serials, pieces, held pulls and links (sections 7 and 8).
// Everything from one endpoint goes to the other. It has no rules, routes or edges, and loses what `faults` say.

import { EventEmitter } from 'node:events';
import {
  ENVELOPE,
  FLAG,
  KIND,
  STATUS,
  decodeAttach,
  decodeEnvelope,
  decodeExchange,
  encodeAnswer,
  encodeAttached,
  encodeEnvelope,
} from '../lib/wire/envelope.mjs';
import { Identity } from '../lib/endpoint/identity.mjs';
import { u16, u32 } from '../lib/wire/fields.mjs';
import { TYPE } from '../lib/wire/packet.mjs';
import { LINK_HEADER, decodeLinkHeader, encodeLinkHeader } from '../lib/wire/link-frame.mjs';

const ANSWER_HEADER = ENVELOPE + 16;
const LANES = 8;
const EVIDENCE = 6 * LANES;
const OWN = new Set([TYPE.LISTEN_STATE, TYPE.NOOP]); // what a relay does not hand on

/** Cut a batch into its packets. */
function cut(bytes) {
  const packets = [];
  for (let at = 0; at < bytes.length;) {
    const size = bytes.readUInt32BE(at + 4);
    packets.push(Buffer.from(bytes.subarray(at, at + size)));
    at += size;
  }
  return packets;
}

const status = (code, http) => ({
  status: http,
  headers: {},
  body: encodeEnvelope(KIND.STATUS, 0, [u16(code), u16(0), u32(0), u16(0)]),
});

class RelayLane {
  constructor(attachment, index) {
    Object.assign(this, { attachment, index, highest: 0, serial: 0, held: null, piece: null, parts: [] });
    this.unconfirmed = []; // {serial, packets} or {serial, piece: {packet, offset, length}}
  }

  confirm(serial) {
    for (const one of this.unconfirmed) if (one.serial <= serial && one.piece) this.piece = this.rest(one.piece);
    this.unconfirmed = this.unconfirmed.filter((one) => one.serial > serial);
  }

  rest({ packet, offset, length }) {
    return offset + length < packet.length ? { packet, offset: offset + length } : null;
  }

  /** Put unconfirmed packets back at the front of the mailbox. */
  putBack() {
    const { mailbox } = this.attachment;
    for (const one of this.unconfirmed.reverse()) mailbox.unshift(...(one.piece ? [one.piece.packet] : one.packets));
    if (this.piece && !this.unconfirmed.some((one) => one.piece)) mailbox.unshift(this.piece.packet);
    this.unconfirmed = [];
    this.piece = null;
  }

  /** Apply the packets of a request, or its piece (7.6). */
  apply({ packets, pieceOffset }, flags) {
    const { deliver } = this.attachment;
    if (!(flags & FLAG.PIECE)) {
      if (packets.length) this.parts = [];
      return deliver(cut(packets));
    }
    const have = Buffer.concat(this.parts);
    if (pieceOffset !== have.length) this.parts = [];
    if (pieceOffset !== 0 && !this.parts.length) return undefined;
    this.parts.push(packets);
    const whole = Buffer.concat(this.parts);
    if (whole.length < whole.readUInt32BE(4)) return undefined;
    this.parts = [];
    return deliver([whole]);
  }
}

export class Attachment {
  constructor(relay, deliver) {
    Object.assign(this, { relay, deliver, lanes: new Map(), mailbox: [], links: [], generation: 0, fresh: true });
  }

  lane(index) {
    if (!this.lanes.has(index)) this.lanes.set(index, new RelayLane(this, index));
    return this.lanes.get(index);
  }

  /** 7.3: `reply` is called once with the answer. */
  exchange(exchange, flags, reply) {
    this.fresh = false;
    const lane = this.lane(exchange.lane);
    if (exchange.serialReceived > lane.serial) return reply(status(STATUS.UNKNOWN, 404));
    const answer = (most = Infinity) => this.answer(lane, exchange, reply, most);
    if (exchange.number > lane.highest) {
      lane.confirm(exchange.serialReceived);
      if (lane.unconfirmed.length) lane.putBack();
      this.release(lane);
      lane.highest = exchange.number;
      lane.apply(exchange, flags);
      const waits = this.mailbox.length || lane.piece;
      return flags & FLAG.PULL && exchange.hold && !waits ? this.keep(lane, exchange, answer) : answer();
    }
    if (exchange.number < lane.highest) return answer(0);
    this.release(lane);
    return this.repeat(lane, answer);
  }

  /** The request is a repeat: its answer has the unconfirmed packets and no others. */
  repeat(lane, answer) {
    const [sent] = lane.unconfirmed;
    if (!sent?.piece) {
      lane.putBack();
      return answer(sent?.packets.length ?? 0);
    }
    lane.unconfirmed = [];
    lane.piece = sent.piece; // 7.14: the piece leaves again at its offset
    return answer();
  }

  release(lane) {
    const { held } = lane;
    lane.held = null;
    held?.cancel();
    held?.answer(0);
  }

  keep(lane, exchange, answer) {
    const cancel = this.relay.clock.after(exchange.hold, () => {
      lane.held = null;
      answer();
    });
    lane.held = { answer, cancel };
  }

  answer(lane, { number, answerLimit }, reply, most) {
    const room = answerLimit - ANSWER_HEADER - EVIDENCE;
    const serial = (lane.serial += 1);
    const taken = most ? this.take(lane, room, serial, most) : { packets: [] };
    const evidence = [...this.lanes.values()].filter(({ held, highest }) => highest && !held);
    const flags = taken.piece ? FLAG.PIECE : this.mailbox.length ? FLAG.MORE : 0;
    const body = encodeAnswer(
      {
        lane: lane.index,
        number,
        serial,
        pieceOffset: taken.piece?.offset ?? 0,
        evidence: evidence.map(({ index, highest }) => [index, highest]),
        packets: taken.packets,
      },
      flags,
    );
    if (body.length > answerLimit) throw new Error(`an answer of ${body.length} bytes exceeds ${answerLimit}`);
    reply({ status: 200, headers: {}, body });
  }

  take(lane, room, serial, most) {
    const first = lane.piece?.packet ?? this.mailbox[0];
    if (first && (lane.piece || first.length > room)) {
      const offset = lane.piece?.offset ?? 0;
      if (!lane.piece) this.mailbox.shift();
      const bytes = first.subarray(offset, offset + room);
      const piece = { packet: first, offset, length: bytes.length };
      lane.piece = null;
      lane.unconfirmed.push({ serial, piece });
      return { packets: [bytes], piece };
    }
    const packets = [];
    for (let size = 0; this.mailbox.length && packets.length < most && size + this.mailbox[0].length <= room;) {
      size += this.mailbox[0].length;
      packets.push(this.mailbox.shift());
    }
    if (packets.length) lane.unconfirmed.push({ serial, packets });
    return { packets };
  }

  /** Something waits now: answer a held pull, or else send it on a link. */
  pump() {
    for (const lane of this.lanes.values()) {
      const { held } = lane;
      if (!held || !this.mailbox.length) continue;
      lane.held = null;
      held.cancel();
      held.answer();
    }
    const link = this.links.find((one) => one.greeted);
    if (link && this.mailbox.length) link.send(this.mailbox.splice(0));
  }
}

/** One link of the relay. `socket` is the endpoint's end; `blind`: the path swallows everything in both directions. */
class RelayLink {
  constructor(relay, attachment, delay) {
    Object.assign(this, { relay, attachment, delay, greeted: false, blind: false, over: false, sent: 0, received: 0 });
    this.outstanding = []; // {number, packets}
    this.buffer = Buffer.alloc(0);
    this.ready = 0; // bytes keep their order
    this.socket = Object.assign(new EventEmitter(), {
      writableNeedDrain: false,
      write: (bytes) => this.later(() => this.data(bytes)),
      destroy: () => this.later(() => this.close()),
    });
  }

  later(action) {
    const { clock } = this.relay;
    this.ready = Math.max(this.ready, clock.now() + this.delay());
    clock.after(this.ready - clock.now(), () => {
      if (!this.blind) action();
    });
  }

  close() {
    if (this.over) return;
    this.over = true;
    this.attachment.links = this.attachment.links.filter((one) => one !== this);
    this.attachment.mailbox.unshift(...this.outstanding.flatMap(({ packets }) => packets));
    this.outstanding = [];
    this.later(() => this.socket.emit('close'));
    this.attachment.pump();
  }

  data(bytes) {
    if (this.over) return;
    if (!this.greeted) return this.greet(decodeExchange(decodeEnvelope(bytes).content));
    this.buffer = Buffer.concat([this.buffer, bytes]);
    while (this.buffer.length >= LINK_HEADER) {
      const { number, received, length } = decodeLinkHeader(this.buffer);
      if (this.buffer.length < LINK_HEADER + length) return;
      const packets = cut(this.buffer.subarray(LINK_HEADER, LINK_HEADER + length));
      this.buffer = this.buffer.subarray(LINK_HEADER + length);
      if (number && number !== this.received + 1) throw new Error(`batch ${number} after ${this.received}`);
      this.outstanding = this.outstanding.filter((one) => one.number > received);
      if (!number) continue;
      this.received = number;
      this.write(0, []);
      this.attachment.deliver(packets);
    }
  }

  greet({ generation }) {
    this.greeted = generation === this.attachment.generation;
    const answer = encodeAnswer({ lane: 0xffff, number: 0, serial: 0, evidence: [] });
    this.later(() => this.socket.emit('data', this.greeted ? answer : status(STATUS.UNKNOWN, 404).body));
    if (this.greeted) this.attachment.links.push(this);
    else this.close();
    this.attachment.fresh = false;
    this.attachment.pump();
  }

  send(packets) {
    this.sent += 1;
    this.outstanding.push({ number: this.sent, packets });
    this.write(this.sent, packets);
  }

  write(number, packets) {
    const length = packets.reduce((sum, packet) => sum + packet.length, 0);
    const bytes = Buffer.concat([encodeLinkHeader(number, this.received, length), ...packets]);
    this.later(() => {
      if (!this.over) this.socket.emit('data', bytes);
    });
  }
}

/** `faults`: {request, response, refuse, upgrade, blind, cut} are probabilities; no body above `largest` passes. */
export class SmallRelay {
  constructor(clock, random, faults) {
    Object.assign(this, { clock, random, faults });
    this.attachments = new Map(); // hexadecimal id -> Attachment
    this.restart();
  }

  /** Everything that the relay holds is lost. */
  restart() {
    for (const { links } of this.attachments.values()) for (const link of [...links]) link.close();
    this.epoch = this.random.bytes(8);
    this.attachments = new Map();
  }

  delay() {
    return 5 + this.random.next() * 30;
  }

  /** Returns what stands for HttpClient at one endpoint. */
  client() {
    const own = {};
    return {
      post: (body, _, done) => this.post(own, body, done),
      upgrade: (done) => this.upgrade(own, done),
      close() {},
    };
  }

  post(own, body, done) {
    const { clock, random, faults } = this;
    let open = true;
    const finish = (error, response) =>
      clock.after(this.delay(), () => {
        if (open) done(error, response);
        open = false;
      });
    const large = body.length > faults.largest;
    const reply = (response) => {
      if (random.chance(faults.response)) return random.chance(0.5) ? finish(new Error('cut off')) : undefined;
      return finish(null, response);
    };
    const refused = body[5] === KIND.EXCHANGE && random.chance(faults.refuse);
    if (refused) finish(null, { status: 403, headers: {}, body: Buffer.from('refused') });
    else if (!large && !random.chance(faults.request)) clock.after(this.delay(), () => this.handle(own, body, reply));
    else if (random.chance(0.5)) finish(new Error('reset'));
    return () => {
      open = false;
    };
  }

  handle(own, body, reply) {
    const { kind, flags, content } = decodeEnvelope(body);
    if (kind === KIND.ATTACH) return this.attach(own, decodeAttach(content), reply);
    const exchange = decodeExchange(content);
    const attachment = this.attachments.get(exchange.id.toString('hex'));
    if (!attachment || !exchange.epoch.equals(this.epoch) || exchange.generation > attachment.generation)
      return reply(status(STATUS.UNKNOWN, 404));
    if (exchange.generation < attachment.generation) return reply(status(STATUS.STALE, 409));
    return attachment.exchange(exchange, flags, reply);
  }

  attach(own, { secret, generation }, reply) {
    const id = new Identity(secret).attachmentId;
    const key = id.toString('hex');
    own.key = key;
    if (!this.attachments.has(key))
      this.attachments.set(key, new Attachment(this, (packets) => this.forward(key, packets)));
    const attachment = this.attachments.get(key);
    if (generation < attachment.generation) return reply(status(STATUS.STALE, 409));
    if (generation > attachment.generation) {
      attachment.generation = generation;
      for (const lane of attachment.lanes.values()) lane.putBack();
      attachment.lanes = new Map();
      for (const link of [...attachment.links]) link.close();
    }
    const limits = { mostPackets: 1024, largestBody: 1024 * 1024, largestPacket: 1024 * 1024, largestHold: 65_000 };
    const more = { pullInterval: 0, initialEdge: 256 * 1024, lanes: LANES, version: 1, streams: false };
    const body = encodeAttached({ id, epoch: this.epoch, generation, fresh: attachment.fresh, ...limits, ...more });
    return reply({ status: 200, headers: {}, body });
  }

  forward(from, packets) {
    for (const [key, attachment] of this.attachments) {
      if (key === from) continue;
      attachment.mailbox.push(...packets.filter((packet) => !OWN.has(packet[3])));
      attachment.pump();
    }
  }

  upgrade(own, done) {
    const { clock, random, faults } = this;
    let open = true;
    clock.after(this.delay() * 2, () => {
      const attachment = this.attachments.get(own.key);
      if (!open) return;
      if (!attachment || random.chance(faults.upgrade)) {
        done(null, { status: 400, headers: {}, body: Buffer.from('no upgrade here') });
        return;
      }
      const link = new RelayLink(this, attachment, () => this.delay());
      const age = 200 + random.next() * 20_000;
      if (random.chance(faults.blind)) clock.after(age, () => this.blind(link));
      else if (random.chance(faults.cut)) clock.after(age, () => link.close());
      done(null, { status: 101, headers: {}, socket: link.socket });
    });
    return () => {
      open = false;
    };
  }

  /** The path swallows everything; after a minute the relay gives the link up. */
  blind(link) {
    link.blind = true;
    this.clock.after(60_000, () => link.close());
  }
}
