// The carrier "link": an upgraded HTTP connection that carries batches both ways (section 8).

import { KIND, encodeExchange, decodeEnvelope, ENVELOPE } from '../wire/envelope.mjs';
import { LINK_HEADER, decodeLinkHeader, encodeLinkHeader } from '../wire/link-frame.mjs';
import { TYPE, encodePacket } from '../wire/packet.mjs';
import { interpret, RESULT } from './response.mjs';

const BATCH = 512 * 1024; // the largest batch that leaves
const MOST_OUTSTANDING = 4 * 1024 * 1024; // bytes without a receipt
const LONGEST_LENGTH = 16 * 1024 * 1024; // 8.3
const RECEIPT_DELAY = 15; // 8.2 allows 25 ms at most
const NO_RECEIPT = 10_000; // 8.0
const QUIET = 30_000; // after this time without a batch a NOOP leaves; if its receipt is missing, the link is dead
const LONGEST_PAUSE = 5000;

/** A batch that only asks for a receipt. */
function noop() {
  const packet = encodePacket({ type: TYPE.NOOP });
  return { packets: [packet], size: packet.length, receipted() {}, lost() {} };
}

/** One opened link. `carrier.ended` is called once, when the link is over. */
class Link {
  constructor(carrier, socket, head) {
    this.carrier = carrier;
    this.socket = socket;
    this.buffer = [];
    this.buffered = 0;
    this.greeted = false;
    this.sent = 0; // the number of the newest batch sent
    this.receipted = 0;
    this.received = 0;
    this.outstanding = []; // {number, batch, at}
    this.outstandingBytes = 0;
    this.over = false;
    this.sentAt = performance.now();
    socket.on('data', (bytes) => this.data(bytes));
    socket.on('drain', () => carrier.wake());
    socket.on('error', (error) => this.end(error.message));
    socket.on('close', () => this.end('the link was closed'));
    this.greet();
    if (head?.length) this.data(head);
  }

  /** 8.0: the first bytes name the attachment. */
  greet() {
    const { info, attachment } = this.carrier;
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
  }

  end(why, result = null) {
    if (this.over) return;
    this.over = true;
    clearTimeout(this.receiptTimer);
    this.socket.destroy();
    this.carrier.ended(this, why, result);
  }

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
      this.receiptTimer ??= setTimeout(() => this.sendReceipt(), RECEIPT_DELAY);
    }
    if (packets) this.carrier.endpoint.handleBatch(packets, performance.now());
    this.carrier.wake();
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
      this.end(result.why, result);
      return false;
    }
    this.greeted = true;
    this.carrier.opened(this);
    return true;
  }

  receipt(number) {
    const now = performance.now();
    this.receipted = number;
    while (this.outstanding.length && this.outstanding[0].number <= number) {
      const { batch } = this.outstanding.shift();
      this.outstandingBytes -= batch.size;
      batch.receipted(now);
    }
  }

  get mayWrite() {
    return this.greeted && !this.over && !this.socket.writableNeedDrain && this.outstandingBytes < MOST_OUTSTANDING;
  }

  send(batch, now) {
    this.sent += 1;
    this.sentAt = now;
    this.outstanding.push({ number: this.sent, batch, at: now });
    this.outstandingBytes += batch.size;
    this.write(this.sent, batch.packets, batch.size);
  }

  sendReceipt() {
    if (!this.over) this.write(0, [], 0);
  }

  write(number, packets, length) {
    clearTimeout(this.receiptTimer);
    this.receiptTimer = null;
    this.socket.write(Buffer.concat([encodeLinkHeader(number, this.received, length), ...packets]));
  }

  silentSince() {
    return this.outstanding.length ? this.outstanding[0].at : Infinity;
  }
}

export class LinkCarrier {
  /** The same options as PollCarrier. */
  constructor(options) {
    Object.assign(this, options);
    this.link = null;
    this.cancel = null;
    this.failures = 0;
    this.counts = { links: 0 };
  }

  get busy() {
    return (this.link?.outstanding.length ?? 0) > 0;
  }

  start(info) {
    this.stop();
    this.info = info;
    this.watch = setInterval(() => this.check(), 1000);
    this.open();
  }

  stop() {
    clearTimeout(this.timer);
    clearInterval(this.watch);
    this.cancel?.();
    this.cancel = null;
    const { link } = this;
    this.link = null;
    link?.end('the endpoint gives it up');
    this.info = null;
  }

  open() {
    this.cancel = this.client.upgrade((error, response) => {
      this.cancel = null;
      if (response?.status === 101) this.link = new Link(this, response.socket, response.head);
      else this.notOpened(error, response);
    });
  }

  /** Not every proxy lets an upgrade through (8.0). */
  notOpened(error, response) {
    const result = interpret(error, response);
    if (error || (response.status >= 500 && result.kind === RESULT.FAILURE) || result.retryAfter)
      return this.again(result.why, result);
    if (result.kind === RESULT.UNKNOWN || result.kind === RESULT.STALE) return this.again(result.why, result);
    return this.fatal(`no link opens on this path (${result.why ?? `HTTP ${response.status}`})`, 'use --carrier poll');
  }

  opened() {
    this.counts.links += 1;
    this.failures = 0;
    this.wake();
  }

  /** A link is over. Its batches without a receipt are given up (8.3), and another link is opened. */
  ended(link, why, result) {
    const now = performance.now();
    for (const { batch } of link.outstanding) batch.lost(now);
    link.outstanding = [];
    if (this.link === link) this.link = null;
    if (this.info) this.again(why, result);
  }

  again(why, result) {
    this.trouble(why);
    if (!this.info) return;
    if (result?.kind === RESULT.UNKNOWN || result?.kind === RESULT.STALE)
      return void this.reattach(result.kind === RESULT.STALE);
    if (result?.kind === RESULT.FINAL) return void this.fatal(why);
    const pause =
      this.failures === 0 ? 0 : Math.min(LONGEST_PAUSE, 100 * 2 ** this.failures) * (0.5 + Math.random() / 2);
    this.failures += 1;
    clearTimeout(this.timer);
    this.timer = setTimeout(
      () => {
        if (this.info) this.open();
      },
      Math.max(pause, result?.retryAfter ?? 0),
    );
    this.wake();
  }

  /** 8.0: a link on which a batch has had no receipt for 10 s is closed. */
  check() {
    const now = performance.now();
    const { link } = this;
    if (!link) return;
    if (now - link.silentSince() > NO_RECEIPT || link.sent === 0xffffffff) link.end('no receipt for 10 s');
    else if (link.mayWrite && now - link.sentAt > QUIET) link.send(noop(), now);
  }

  pump(now) {
    const { link } = this;
    while (link?.mayWrite && this.endpoint.hasWork(now)) {
      const batch = this.endpoint.fill(BATCH, now);
      if (!batch || !batch.items.length) break;
      link.send(batch, now);
    }
  }
}
