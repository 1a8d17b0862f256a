// The carrier "poll": exchanges on lanes (section 7).

import { EXCHANGE_HEADER, FLAG, KIND, encodeExchange } from '../wire/envelope.mjs';
import { Hold, SizeLimit } from './limits.mjs';
import { Incoming, Outgoing } from './pieces.mjs';
import { RepeatedRequest } from './repeat.mjs';
import { RESULT } from './response.mjs';

const MOST_LANES = 4;
const MOST_OPEN = 3; // 7.8
const LEAST_BODY = 16 * 1024; // the document has 4 KiB (7.9)
const LAST = 0xfffffff0; // 6.2: an endpoint attaches again before the numbers of a lane end

class Lane {
  constructor(index) {
    this.index = index;
    this.number = 0;
    this.serialReceived = 0;
    this.current = null; // the exchange in flight
    this.outgoing = null; // pieces still to be sent
    this.incoming = new Incoming();
  }
}

export class PollCarrier {
  /** {client, endpoint, attachment, times, wake(), reattach(stale), fatal(why), trouble(why)} */
  constructor(options) {
    Object.assign(this, options);
    this.lanes = [];
    this.counts = { exchanges: 0, repeats: 0, pieces: 0 };
  }

  /** The lanes start anew with each generation (6.2). */
  start(info) {
    this.stop();
    this.info = info;
    this.bodies = new SizeLimit(info.largestBody);
    this.answers = new SizeLimit(Math.min(info.largestBody, 4 * 1024 * 1024));
    this.hold = new Hold(info.largestHold);
    this.moreWaits = false;
    this.pulledAt = -Infinity;
    this.lanes = Array.from({ length: Math.min(MOST_LANES, info.lanes) }, (_, index) => new Lane(index));
  }

  /** Give up everything in flight (4.10). */
  stop() {
    clearTimeout(this.pullTimer);
    for (const lane of this.lanes) {
      if (lane.current) this.giveUp(lane);
      lane.outgoing?.batch.lost(performance.now());
      clearTimeout(lane.evidenceTimer);
    }
    this.lanes = [];
  }

  /** Whether packets are still on their way to the relay. */
  get busy() {
    return this.lanes.some((lane) => lane.outgoing || lane.current?.batch);
  }

  giveUp(lane) {
    const { request, batch } = lane.current;
    request.stop();
    lane.current = null;
    batch?.lost(performance.now());
  }

  pump(now) {
    for (const lane of this.lanes) {
      if (lane.current) continue;
      if (lane.outgoing) this.sendPiece(lane, now);
      else if (lane.incoming.open) this.pull(lane, 0, now); // 7.14
    }
    while (this.lanes.length && this.endpoint.hasWork(now)) {
      const lane = this.idle();
      if (!lane || !this.push(lane, now)) break;
    }
    this.pullMore(now);
  }

  idle() {
    return this.lanes.find((lane) => !lane.current && !lane.outgoing);
  }

  push(lane, now) {
    const limit = Math.floor(this.bodies.value) - EXCHANGE_HEADER;
    const batch = this.endpoint.fill(limit, now);
    if (!batch || !batch.items.length) return false;
    if (batch.size > limit) {
      lane.outgoing = new Outgoing(batch.packets[0], batch);
      this.sendPiece(lane, now);
    } else this.send(lane, { packets: batch.packets, batch }, now);
    return true;
  }

  sendPiece(lane, now) {
    const { outgoing } = lane;
    const { offset, bytes } = outgoing.next(Math.floor(this.bodies.value) - EXCHANGE_HEADER);
    this.counts.pieces += 1;
    // The receipt of the packet is that of its last piece.
    if (outgoing.done) lane.outgoing = null;
    this.send(
      lane,
      { packets: [bytes], batch: outgoing.done ? outgoing.batch : null, flags: FLAG.PIECE, pieceOffset: offset },
      now,
    );
  }

  /** One pull is held. While more packets wait, idle lanes pull without a hold; one lane is left for pushes (7.15). */
  pullMore(now) {
    if (!this.lanes.length) return;
    const interval = this.info.pullInterval;
    if (interval) return this.pullByInterval(interval, now);
    const most = this.moreWaits ? this.lanes.length - 1 : 1;
    let pulls = this.lanes.filter((lane) => lane.current?.pull).length;
    while (pulls < most) {
      const idle = this.lanes.filter((lane) => !lane.current && !lane.outgoing);
      if (idle.length < 2 && this.lanes.length > 1 && pulls > 0) return;
      if (!idle.length) return;
      this.pull(idle[idle.length - 1], pulls > 0 || this.moreWaits ? 0 : this.hold.next, now);
      pulls += 1;
    }
  }

  pullByInterval(interval, now) {
    if (this.moreWaits || now - this.pulledAt >= interval) {
      const lane = this.idle();
      if (lane) {
        this.pulledAt = now;
        this.pull(lane, 0, now);
      }
    }
    clearTimeout(this.pullTimer);
    this.pullTimer = setTimeout(() => this.wake(), Math.max(1, this.pulledAt + interval - now));
  }

  pull(lane, hold, now) {
    this.send(lane, { packets: [], pull: true, hold, flags: FLAG.PULL }, now);
  }

  /** The numbers of a lane will end soon: attach again, once the present exchange has left. */
  numbersEnd() {
    setImmediate(() => this.reattach(false));
  }

  send(lane, { packets, batch = null, pull = false, hold = 0, flags = 0, pieceOffset = 0 }, now) {
    if (lane.number >= LAST || lane.serialReceived >= LAST) this.numbersEnd();
    lane.number += 1;
    const body = encodeExchange({
      id: this.info.id,
      epoch: this.info.epoch,
      generation: this.attachment.generation,
      lane: lane.index,
      number: lane.number,
      serialReceived: lane.serialReceived,
      hold,
      answerLimit: Math.floor(this.answers.value),
      pieceOffset,
      flags,
      packets,
    });
    const current = { number: lane.number, batch, pull, hold, size: body.length, startedAt: now, evident: false };
    lane.current = current;
    this.counts.exchanges += 1;
    current.request = new RepeatedRequest({
      client: this.client,
      body,
      maxOpen: MOST_OPEN,
      deadline: this.times.deadline + hold,
      smoothed: () => this.times.srtt,
      isAnswer: (result) =>
        result.of === KIND.ANSWER && result.value.lane === lane.index && result.value.number === current.number,
      isFailure: (result) => result.kind === RESULT.TOO_LARGE && (pull || body.length <= LEAST_BODY), // 7.9
      done: (result, request) => {
        if (lane.current === current) this.done(lane, current, result, request);
      },
      failed: (why) => this.failed(current, why),
    });
  }

  failed(current, why) {
    this.counts.repeats += 1;
    if (current.hold >= 1000 && why !== 'silence') this.hold.died();
    this.trouble(why);
  }

  done(lane, current, result, request) {
    const now = performance.now();
    if (result.kind === RESULT.UNKNOWN || result.kind === RESULT.STALE)
      return this.reattach(result.kind === RESULT.STALE);
    if (result.kind === RESULT.FINAL) return this.fatal(result.why);
    lane.current = null;
    if (result.kind === RESULT.TOO_LARGE) {
      this.bodies.tooLarge(current.size, now);
      current.batch?.lost(now);
      lane.outgoing?.batch.lost(now);
      lane.outgoing = null;
    } else this.answered(lane, current, result, request, now);
    this.wake();
  }

  answered(lane, current, { value, flags }, request, now) {
    const time = now - request.startedAt;
    lane.serialReceived = value.serial;
    current.batch?.receipted(now);
    const size = value.packets.length;
    if (current.hold === 0) {
      if (request.sent === 1) this.times.sample(time);
      this.bodies.answered(current.size, time, now);
      this.answers.answered(size, time, now);
    }
    this.moreWaits = (flags & FLAG.MORE) !== 0 || size > this.answers.value / 2;
    if (current.pull && current.hold) {
      if (size) this.hold.packetsCame();
      else this.hold.nothingCame();
    } else if (size) this.hold.packetsCame();
    this.weigh(value.evidence);
    if (flags & FLAG.PIECE) this.takePiece(lane, value, now);
    else if (size) {
      lane.incoming.clear(); // 7.6: whole packets end a packet that came in pieces
      this.endpoint.handleBatch(value.packets, now);
    }
  }

  takePiece(lane, value, now) {
    this.counts.pieces += 1;
    const whole = lane.incoming.take(value.pieceOffset, value.packets);
    if (whole) this.endpoint.handleBatch(whole, now);
  }

  /** Evidence: the relay has answered what this lane still waits for (7.7). */
  weigh(evidence) {
    for (const [index, highest] of evidence) {
      const lane = this.lanes[index];
      const current = lane?.current;
      if (!current || current.number > highest || current.evident) continue;
      current.evident = true;
      lane.evidenceTimer = setTimeout(
        () => {
          if (lane.current === current) current.request.repeatNow();
        },
        50 + (this.times.srtt ?? 0) / 4,
      );
    }
  }
}
