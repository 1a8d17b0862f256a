// The carrier "poll": exchanges on lanes, and packets that come in pieces (7.2 to 7.6, 7.14, 7.15).
import { LEAST_BODY, RepeatedRequest } from './exchange.mjs';
import { EXCHANGE_HEADER, FLAG, KIND, encodeBody } from './wire.mjs';
const [LANES, BODY] = [4, 64 * 1024]; // the bytes of requests and of answers (7.16)
const [FIRST_HOLD, LONGEST_HOLD] = [1000, 15_000];
const LAST = 0xfffffff0; // 6.2: an endpoint attaches again before the numbers of a lane end

export class Poll {
  constructor(runtime) { Object.assign(this, { runtime, lanes: [] }); }
  start(info) {
    Object.assign(this, { info, hold: FIRST_HOLD, moreWaits: false, pulledAt: -Infinity });
    this.limit = Math.min(BODY, info.largestBody);
    const lane = (_, index) => ({ index, number: 0, serial: 0, current: null, incoming: Buffer.alloc(0) });
    this.lanes = Array.from({ length: Math.min(LANES, info.lanes) }, lane);
  }
  /** Give up everything in flight (4.10). */
  stop() { clearTimeout(this.timer); for (const lane of this.lanes.splice(0)) this.giveUp(lane); }
  giveUp(lane) {
    lane.current?.request.stop();
    for (const item of lane.current?.items ?? []) item.lost?.();
    lane.current = null;
  }
  get busy() { return this.lanes.some(({ current }) => current?.items.length); }
  get idle() { return this.lanes.filter(({ current }) => !current); }
  get pulls() { return this.lanes.filter(({ current }) => current?.pull).length; }
  /** `resting`: a link carries everything; only pieces that have begun go on here (8.0). */
  pump(now, resting) {
    for (const lane of this.idle) if (lane.incoming.length) this.pull(lane, 0, now);
    const { endpoint } = this.runtime;
    const isFree = () => this.idle.length > (this.pulls || this.lanes.length === 1 ? 0 : 1); // one is left for a pull
    while (!resting && isFree()) {
      const items = endpoint.fill(this.limit - EXCHANGE_HEADER, now);
      if (!items.length) break;
      this.send(this.idle[0], { items });
    }
    if (!resting) this.pullMore(now);
  }
  /** One pull is held, or pulls leave at an interval. While more packets wait, idle lanes pull without a hold. */
  pullMore(now) {
    const interval = this.runtime.endpoint.settings.pullInterval || (this.lanes.length > 1 ? 0 : 100); // 7.15
    const due = this.pulledAt + interval;
    clearTimeout(this.timer);
    const most = () => (this.moreWaits ? this.lanes.length : Number(due <= now));
    while (this.idle.length && this.pulls < most()) {
      this.pull(this.idle[0], interval || this.moreWaits ? 0 : this.hold, now);
      if (interval) this.moreWaits = false;
      if (interval) break;
    }
    if (interval && !this.pulls) this.timer = setTimeout(() => this.runtime.wake(), Math.max(1, due - now));
  }
  pull(lane, hold, now) { this.pulledAt = now; this.send(lane, { pull: true, hold, flags: FLAG.PULL }); }
  send(lane, { items = [], pull = false, hold = 0, flags = 0 }) {
    const { runtime, info } = this;
    lane.number += 1;
    if (lane.number >= LAST || lane.serial >= LAST) setImmediate(() => runtime.reattach(false));
    const { number, index } = lane;
    const place = { id: info.id, epoch: info.epoch, generation: runtime.generation, lane: index, number };
    const packets = Buffer.concat(items.map(({ bytes }) => bytes));
    const fields = { ...place, serialReceived: lane.serial, hold, answerLimit: BODY, packets };
    const current = { items, pull, hold };
    lane.current = current;
    current.request = new RepeatedRequest({
      client: runtime.client, body: encodeBody(KIND.EXCHANGE, fields, flags), maxOpen: 3, hold, isPush: !pull,
      isAnswer: ({ of, value }) => of === KIND.ANSWER && value.lane === index && value.number === number,
      done: (result) => lane.current === current && this.done(lane, current, result),
      trouble: runtime.trouble,
    });
  }
  done(lane, current, result) {
    const { runtime } = this;
    if (result.kind === 'unknown' || result.kind === 'stale') return runtime.reattach(result.kind === 'stale');
    if (result.kind === 'final') return runtime.fatal(result.why);
    if (result.kind === 'answer') this.answered(lane, current, result);
    else this.giveUp(lane); // 7.9
    if (result.kind === 'too large') this.limit = Math.max(LEAST_BODY, this.limit >> 1);
    return runtime.wake();
  }
  answered(lane, { items, hold, request }, { flags, value: { serial, packets, pieceOffset } }) {
    const now = performance.now();
    Object.assign(lane, { serial, current: null });
    for (const item of items) item.receipted?.(now);
    this.moreWaits = (flags & FLAG.MORE) !== 0;
    if (packets.length || (hold && request.sent > 1)) this.hold = FIRST_HOLD; // the path may cut what waits
    else if (hold) this.hold = Math.min(LONGEST_HOLD, this.info.largestHold, hold * 2);
    const whole = flags & FLAG.PIECE ? this.piece(lane, packets, pieceOffset) : packets;
    if (!(flags & FLAG.PIECE) && packets.length) lane.incoming = Buffer.alloc(0);
    if (whole) this.runtime.endpoint.handleBatch(whole, now);
    if (flags & FLAG.PIECE && !lane.current) this.pull(lane, 0, now); // 7.14: the next exchange leaves at once
  }
  /** Take a piece (7.6); returns the whole packet once it is complete. */
  piece(lane, bytes, offset) {
    if (offset !== lane.incoming.length) lane.incoming = Buffer.alloc(0); // it does not continue what is held
    if (offset !== lane.incoming.length) return null;
    const packet = Buffer.concat([lane.incoming, bytes]);
    const isWhole = packet.length >= 8 && packet.length >= packet.readUInt32BE(4);
    lane.incoming = isWhole ? Buffer.alloc(0) : packet;
    return isWhole ? packet : null;
  }
}
