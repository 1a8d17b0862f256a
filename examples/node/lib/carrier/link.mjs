// One opened link: an upgraded HTTP connection that carries batches both ways (8.0 to 8.4).

import { Alarm } from '../clock.mjs';
import { KIND, encodeExchange, decodeEnvelope, ENVELOPE } from '../wire/envelope.mjs';
import { LINK_HEADER, decodeLinkHeader, encodeLinkHeader } from '../wire/link-frame.mjs';
import { TYPE, encodePacket } from '../wire/packet.mjs';
import { interpret, RESULT } from './response.mjs';

const BATCH = 512 * 1024; // the largest batch that leaves
const MOST_OUTSTANDING = 4 * 1024 * 1024; // bytes without a receipt
const UNTRUSTED = 64 * 1024; // as above, until receipts for as much have come (8.6)
const LEAST_BATCH = 4096;
const LONGEST_LENGTH = 16 * 1024 * 1024; // 8.3
const RECEIPT_DELAY = 15; // 8.2 allows 25 ms at most
const LONGEST_SILENCE = 19_000; // 8.4 allows 20 s
const LAST = 0xffffffff;

/** A batch that only asks for a receipt. */
function noop() {
  const packet = encodePacket({ type: TYPE.NOOP });
  return { packets: [packet], size: packet.length, receipted() {}, lost() {} };
}

/** Asks for an upgrade. The owner then has a link that has started as `link`, or its `notOpened` is called. */
export function openLink(owner) {
  owner.cancel = owner.client.upgrade((error, response) => {
    owner.cancel = null;
    if (response?.status !== 101) return owner.notOpened(error, response);
    owner.link = new Link(owner, response.socket);
    return owner.link.start(response.head);
  });
}

export class Link {
  /**
   * `owner`: {clock, endpoint, info, attachment, wake(), opened(link), receipted(link), ended(link, why, result)}.
   * `ended` is called once, when the link is over.
   */
  constructor(owner, socket) {
    this.owner = owner;
    this.clock = owner.clock;
    this.socket = socket;
    this.buffer = [];
    this.buffered = 0;
    this.greeted = false;
    this.sent = 0; // the number of the newest batch sent
    this.receipted = 0;
    this.receiptedBytes = 0;
    this.received = 0;
    this.outstanding = []; // {number, batch, at}
    this.outstandingBytes = 0;
    this.over = false;
    this.receiptAlarm = new Alarm(this.clock, () => this.sendReceipt());
    this.silenceAlarm = new Alarm(this.clock, () => this.sendReceipt()); // 8.4
    this.receiptOwed = false;
  }

  /** 8.0: the first bytes name the attachment. `head`: bytes of the relay that came with the response 101. */
  start(head) {
    const { socket } = this;
    socket.on('data', (bytes) => this.data(bytes));
    socket.on('drain', () => this.owner.wake());
    socket.on('error', (error) => this.end(error.message));
    socket.on('close', () => this.end('the link was closed'));
    const { info, attachment } = this.owner;
    this.socket.write(
      encodeExchange({
        id: info.id,
        epoch: info.epoch,
        generation: attachment.generation,
        lane: 0xffff,
        number: 0,
        serialReceived: 0,
        answerLimit: 0,
      }),
    );
    if (head?.length) this.data(head);
  }

  end(why, result = null) {
    if (this.over) return;
    this.over = true;
    this.receiptAlarm.clear();
    this.silenceAlarm.clear();
    this.socket.destroy();
    this.giveUp();
    this.owner.ended(this, why, result);
  }

  /** Give up the batches without a receipt (4.10). */
  giveUp() {
    const now = this.clock.now();
    const given = this.outstanding;
    this.outstanding = [];
    this.outstandingBytes = 0;
    for (const { batch } of given) batch.lost(now);
  }

  // --- what arrives ---

  data(bytes) {
    this.buffer.push(bytes);
    this.buffered += bytes.length;
    while (!this.over && this.parse());
  }

  /** The first `count` bytes in one piece, or null. */
  take(count, keep = false) {
    if (this.buffered < count) return null;
    if (this.buffer[0].length < count) this.buffer = [Buffer.concat(this.buffer)];
    const part = this.buffer[0].subarray(0, count);
    if (keep) return part;
    this.buffer[0] = this.buffer[0].subarray(count);
    if (!this.buffer[0].length) this.buffer.shift();
    this.buffered -= count;
    return part;
  }

  parse() {
    if (!this.greeted) return this.parseGreeting();
    const head = this.take(LINK_HEADER, true);
    if (!head) return false;
    const frame = decodeLinkHeader(head);
    const wrong = this.wrong(frame);
    if (wrong) {
      this.end(wrong);
      return false;
    }
    if (this.buffered < LINK_HEADER + frame.length) return false;
    this.take(LINK_HEADER);
    const packets = frame.length ? this.take(frame.length) : null;
    this.receipt(frame.received);
    if (frame.number) {
      this.received = frame.number;
      if (!this.receiptOwed) this.receiptAlarm.set(RECEIPT_DELAY);
      this.receiptOwed = true;
    }
    if (packets) this.owner.endpoint.handleBatch(packets, this.clock.now());
    this.owner.wake();
    return true;
  }

  /** Returns why a header is wrong (8.3), or null. */
  wrong(frame) {
    if (!frame) return 'a header on the link is damaged';
    if (frame.number !== 0 && frame.number !== this.received + 1) return 'a batch number on the link is wrong';
    if (frame.number === 0 && frame.length) return 'a receipt on the link has a length';
    if (frame.received < this.receipted || frame.received > this.sent) return 'a receipt on the link is wrong';
    return frame.length > LONGEST_LENGTH ? 'a batch on the link is too long' : null;
  }

  parseGreeting() {
    const head = this.take(ENVELOPE, true);
    if (!head) return false;
    const length = head.readUInt32BE(8);
    if (head.toString('latin1', 0, 4) !== 'TUNL' || length > 65_536) {
      this.end('the link does not start with an envelope');
      return false;
    }
    const body = this.take(ENVELOPE + length);
    if (!body) return false;
    const result = interpret(null, { status: 200, headers: {}, body });
    if (result.kind !== RESULT.ANSWER || decodeEnvelope(body).kind !== KIND.ANSWER) {
      this.end(result.why ?? 'the link does not start with ANSWER', result);
      return false;
    }
    this.greeted = true;
    this.silenceAlarm.set(LONGEST_SILENCE);
    this.owner.opened(this);
    return true;
  }

  receipt(number) {
    const news = number > this.receipted;
    this.receipted = number;
    const now = this.clock.now();
    while (this.outstanding.length && this.outstanding[0].number <= number) {
      const { batch } = this.outstanding.shift();
      this.outstandingBytes -= batch.size;
      this.receiptedBytes += batch.size;
      batch.receipted(now);
    }
    if (news) this.owner.receipted(this);
  }

  // --- what leaves ---

  /** How many bytes the next batch may have; 0 while none may leave. */
  get room() {
    if (!this.greeted || this.over || this.socket.writableNeedDrain || this.sent === LAST) return 0;
    if (!this.outstandingBytes) return this.trusted ? BATCH : UNTRUSTED;
    const room = (this.trusted ? MOST_OUTSTANDING : UNTRUSTED) - this.outstandingBytes;
    return room < LEAST_BATCH ? 0 : Math.min(BATCH, room);
  }

  /** 8.6: some paths pass a first message, and no more. */
  get trusted() {
    return this.receiptedBytes >= UNTRUSTED;
  }
  get spent() {
    return this.sent === LAST;
  }

  send(batch, now) {
    this.sent += 1;
    this.outstanding.push({ number: this.sent, batch, at: now });
    this.outstandingBytes += batch.size;
    this.write(this.sent, batch.packets, batch.size);
  }

  sendNoop(now) {
    if (this.room) this.send(noop(), now);
  }

  sendReceipt() {
    if (!this.over) this.write(0, [], 0);
  }

  write(number, packets, length) {
    this.receiptAlarm.clear();
    this.receiptOwed = false;
    this.silenceAlarm.set(LONGEST_SILENCE);
    this.socket.write(Buffer.concat([encodeLinkHeader(number, this.received, length), ...packets]));
  }

  /** Send what the endpoint has to send, as far as there is room. */
  pump(now) {
    for (;;) {
      const { room } = this;
      if (!room || !this.owner.endpoint.hasWork(now)) return;
      const batch = this.owner.endpoint.fill(room, now);
      if (!batch || !batch.items.length) return;
      this.send(batch, now);
    }
  }
}
