// A link: an upgraded HTTP connection that carries batches both ways (8.0 to 8.4).
import { interpret } from './exchange.mjs';
import * as wire from './wire.mjs';
const { ENVELOPE, KIND, LINK_HEADER } = wire;
const NOOP = wire.encodePacket({ type: wire.TYPE.NOOP });
const [BATCH, MOST_OUTSTANDING] = [512 * 1024, 4 * 1024 * 1024]; // bytes of a batch, and bytes without a receipt
const LONGEST_LENGTH = 16 * 1024 * 1024; // 8.3
const [RECEIPT_DELAY, LONGEST_SILENCE] = [15, 19_000]; // 8.2 and 8.4 allow 25 ms and 20 s
const [OPENING, NO_RECEIPT] = [3000, 10_000]; // 8.6, 8.0
const LAST = 0xffffffff;

export class Link {
  /** `opened()` follows once the link works, and `ended(why, result)` once when it is over. */
  constructor(runtime, info, { opened, ended }) {
    Object.assign(this, { runtime, info, opened, ended, buffer: Buffer.alloc(0), greeted: false });
    Object.assign(this, { sent: 0, receipted: 0, received: 0 }); // numbers of batches
    Object.assign(this, { outstanding: [], outstandingBytes: 0, sentAt: 0 }); // {number, items, size, at}
    const more = { headers: { Connection: 'Upgrade', Upgrade: 'tunnel-link/1' }, agent: false };
    this.request = runtime.client.request('GET', 'link', more, (result) => this.end(result.why, result));
    this.request.on('upgrade', (_, socket, head) => this.start(socket, head));
    this.limit = setTimeout(() => this.end('the link does not answer'), OPENING);
  }
  /** 8.0: the first bytes name the attachment. */
  start(socket, head) {
    if (this.over) return socket.destroy();
    this.socket = socket.setNoDelay(true);
    socket.on('data', (bytes) => this.data(bytes)).on('drain', () => this.runtime.wake());
    socket.on('error', (error) => this.end(error.message)).on('close', () => this.end('the link was closed'));
    const { id, epoch } = this.info;
    socket.write(wire.encodeBody(KIND.EXCHANGE, { id, epoch, generation: this.runtime.generation, lane: 0xffff }));
    return this.data(head);
  }
  /** The link is over: give up the batches without a receipt (4.10). */
  end(why, result = {}) {
    if (this.over) return false;
    this.over = true;
    for (const timer of [this.limit, this.watch, this.receiptTimer, this.silence]) clearTimeout(timer);
    this.request.destroy();
    this.socket?.destroy();
    for (const { items } of this.outstanding.splice(0)) for (const item of items) item.lost?.();
    this.ended(why, result);
    return false;
  }
  data(bytes) {
    this.buffer = Buffer.concat([this.buffer, bytes]);
    while (!this.over && (this.greeted ? this.parse() : this.parseGreeting()));
  }
  take(count) { const part = this.buffer.subarray(0, count); this.buffer = this.buffer.subarray(count); return part; }
  parseGreeting() {
    if (this.buffer.length < ENVELOPE) return false;
    const length = ENVELOPE + this.buffer.readUInt32BE(8);
    if (length > 65_536) return this.end('the link does not start with an envelope');
    if (this.buffer.length < length) return false;
    const result = interpret({ statusCode: 200, headers: {} }, this.take(length));
    if (result.of !== KIND.ANSWER) return this.end(result.why, result);
    clearTimeout(this.limit);
    this.greeted = true;
    this.watch = setInterval(() => this.check(), 1000);
    this.write(0, []);
    this.opened();
    return true;
  }
  parse() {
    if (this.buffer.length < LINK_HEADER) return false;
    const frame = wire.decodeLinkHeader(this.buffer.subarray(0, LINK_HEADER));
    const { number, received, length } = frame ?? {};
    const wrongNumber = number !== 0 ? number !== this.received + 1 : length > 0;
    if (!frame || wrongNumber || received < this.receipted || received > this.sent || length > LONGEST_LENGTH)
      return this.end('a header on the link is wrong'); // 8.3
    if (this.buffer.length < LINK_HEADER + length) return false;
    this.take(LINK_HEADER);
    this.receipt(received);
    if (number) this.receiptTimer ??= setTimeout(() => this.write(0, []), RECEIPT_DELAY);
    this.received = number || this.received;
    this.runtime.endpoint.handleBatch(this.take(length), performance.now());
    this.runtime.wake();
    return true;
  }
  receipt(number) {
    this.receipted = number;
    while (this.outstanding[0]?.number <= number) {
      const { items, size } = this.outstanding.shift();
      this.outstandingBytes -= size;
      for (const item of items) item.receipted?.(performance.now());
    }
  }
  /** 8.0: a link on which a batch has had no receipt for 10 s is closed. While nothing leaves, a NOOP asks for one. */
  check() {
    const now = performance.now();
    const [oldest] = this.outstanding;
    if (oldest ? now - oldest.at > NO_RECEIPT : this.sent === LAST) this.end('no receipt for 10 s');
    else if (!oldest && now - this.sentAt > NO_RECEIPT) this.send([{ bytes: NOOP }], now);
  }
  write(number, items) {
    clearTimeout(this.receiptTimer);
    clearTimeout(this.silence);
    this.receiptTimer = null;
    this.silence = setTimeout(() => this.write(0, []), LONGEST_SILENCE);
    const packets = Buffer.concat(items.map(({ bytes }) => bytes));
    this.socket.write(Buffer.concat([wire.encodeLinkHeader(number, this.received, packets.length), packets]));
    return packets.length;
  }
  send(items, now) {
    this.sent += 1;
    this.sentAt = now;
    const size = this.write(this.sent, items);
    this.outstanding.push({ number: this.sent, items, size, at: now });
    this.outstandingBytes += size;
  }
  pump(now) {
    const { endpoint } = this.runtime;
    while (this.greeted && !this.over && !this.socket.writableNeedDrain && this.sent < LAST) {
      const items = this.outstandingBytes < MOST_OUTSTANDING ? endpoint.fill(BATCH, now) : [];
      if (!items.length) return;
      this.send(items, now);
    }
  }
}
