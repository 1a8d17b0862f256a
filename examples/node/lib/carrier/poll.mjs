// The carrier "poll": exchanges on lanes (section 7).

import { EXCHANGE_HEADER, FLAG, KIND, encodeExchange } from '../wire/envelope.mjs';
import { Alarm } from '../clock.mjs';
import { HeldPulls } from './held.mjs';
import { Hold } from './hold.mjs';
import { Lane } from './lane.mjs';
import { LEAST, SizeLimit } from './limits.mjs';
import { Outgoing } from './pieces.mjs';
import { RepeatedRequest } from './repeat.mjs';
import { RESULT } from './response.mjs';
import { SuspectAnswers, SuspectBody } from './suspicion.mjs';

const MOST_LANES = 5;
const PULL_LANES = 2; // pushes leave so many lanes for pulls: one is held, and one finds out what passes (7.16)
const MOST_OPEN = 3; // 7.8
const LARGEST_ANSWER = 4 * 1024 * 1024;
const HELD = 1000; // ms; a pull with a shorter hold does not count as held
const LAST = 0xfffffff0; // 6.2: an endpoint attaches again before the numbers of a lane end

export class PollCarrier {
  /** {client, clock, endpoint, attachment, times, wake(), reattach(stale), fatal(why), trouble(why)} */
  constructor(options) {
    Object.assign(this, options);
    this.lanes = [];
    this.noHold = false; // a link is tried, and a held pull could stand in its way (8.6)
    this.resting = false; // a link carries everything: nothing is pushed or pulled here (8.0)
    this.counts = { exchanges: 0, repeats: 0, pieces: 0 };
    this.pullAlarm = new Alarm(this.clock, () => this.wake());
  }

  /** The lanes start anew with each generation (6.2). */
  start(info) {
    this.stop();
    this.info = info;
    this.bodies = new SizeLimit(info.largestBody);
    this.answers = new SizeLimit(Math.min(info.largestBody, LARGEST_ANSWER));
    this.suspectAnswers = new SuspectAnswers();
    this.hold = new Hold(info.largestHold);
    this.held = new HeldPulls(this.times);
    this.moreWaits = false;
    this.probeSmall = false; // a pull without a hold shows whether small bodies pass (7.16)
    this.pulledAt = -Infinity;
    this.lanes = Array.from({ length: Math.min(MOST_LANES, info.lanes) }, (_, index) => new Lane(index));
    this.endpoint.settings.lanes = this.lanes.length; // 4.8
  }

  /** Give up everything in flight (4.10). */
  stop() {
    this.pullAlarm.clear();
    const now = this.clock.now();
    for (const lane of this.lanes) {
      lane.giveUp(now);
      lane.giveUpPieces(now);
    }
    this.lanes = [];
  }

  /** Whether packets are still on their way to the relay. */
  get busy() {
    return this.lanes.some((lane) => lane.outgoing || lane.current?.batch);
  }

  get inFlight() {
    return this.lanes.map((lane) => lane.current).filter((current) => current);
  }

  pump(now) {
    for (const lane of this.lanes) {
      if (lane.current) continue;
      if (lane.outgoing) this.sendPiece(lane, now);
      else if (lane.incoming.open) this.pull(lane, 0, now); // 7.14
    }
    if (this.resting) return this.pullAlarm.clear();
    while (this.lanes.length && this.endpoint.hasWork(now)) {
      const lane = this.laneForPush();
      if (!lane || !this.push(lane, now)) break;
    }
    this.pullMore(now);
  }

  laneForPush() {
    const pulls = this.inFlight.filter(({ pull }) => pull).length;
    const kept = Math.min(PULL_LANES, this.lanes.length - 1) - pulls;
    const idle = this.lanes.filter((lane) => lane.idle);
    return idle.length > kept ? idle[0] : null;
  }

  idle() {
    return this.lanes.find((lane) => lane.idle);
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
    if (this.probeSmall) this.pullSmall(now);
    const interval = this.endpoint.settings.pullInterval || (this.mayHold(now) ? 0 : this.held.pause);
    if (interval) return this.pullByInterval(interval, now);
    this.pullAlarm.clear();
    const most = this.moreWaits ? this.lanes.length - 1 : 1;
    let pulls = this.lanes.filter((lane) => lane.current?.pull).length;
    while (pulls < most) {
      const idle = this.lanes.filter((lane) => lane.idle);
      if (idle.length < 2 && this.lanes.length > 1 && pulls > 0) return;
      if (!idle.length) return;
      this.pull(idle[idle.length - 1], pulls > 0 || this.moreWaits ? 0 : this.hold.next, now);
      pulls += 1;
    }
  }

  /** On a single lane, a push would have to wait until the hold ends. */
  mayHold(now) {
    return this.lanes.length > 1 && this.held.allowed(now) && !this.noHold;
  }

  get holding() {
    return this.inFlight.some(({ hold }) => hold > 0);
  }

  /** Since when the exchange that waits longest has had no answer; its hold and the time before `from` do not count. */
  waitingSince(from) {
    return Math.min(...this.inFlight.map(({ startedAt, hold }) => Math.max(from, startedAt + hold)));
  }

  pullByInterval(interval, now) {
    const asked = this.inFlight.some(({ pull, hold }) => pull && !hold); // a second pull would bring nothing more
    if (this.moreWaits || (!asked && now - this.pulledAt >= interval)) {
      const lane = this.idle();
      if (!lane) return; // the next answer frees one
      this.pulledAt = now;
      this.moreWaits = false; // until the answer says so again
      this.pull(lane, 0, now);
    }
    if (!asked) this.pullAlarm.set(Math.max(1, this.pulledAt + interval - now)); // else its answer wakes the carrier
  }

  /** 7.16: find out whether small bodies pass, unless a pull in flight shows it anyway. */
  pullSmall(now) {
    this.probeSmall = false;
    const known = this.inFlight.some(({ pull, hold, request }) => pull && (!hold || request.failures > 0));
    const lane = this.idle();
    if (!known && lane) this.pull(lane, 0, now);
  }

  pull(lane, hold, now) {
    this.send(lane, { packets: [], pull: true, hold, flags: FLAG.PULL }, now);
  }

  /** The numbers of a lane will end soon: attach again, once the present exchange has left. */
  numbersEnd() {
    this.clock.soon(() => this.reattach(false));
  }

  send(lane, { packets, batch = null, pull = false, hold = 0, flags = 0, pieceOffset = 0 }, now) {
    if (lane.number >= LAST || lane.serialReceived >= LAST) this.numbersEnd();
    lane.number += 1;
    const answerLimit = Math.floor(this.answers.value);
    const fields = {
      id: this.info.id,
      epoch: this.info.epoch,
      generation: this.attachment.generation,
      lane: lane.index,
      number: lane.number,
      serialReceived: lane.serialReceived,
      hold,
      pieceOffset,
      flags,
      packets,
    };
    const body = encodeExchange({ ...fields, answerLimit });
    const current = { number: lane.number, batch, pull, hold, size: body.length, answerLimit, startedAt: now };
    if (!pull) current.suspect = new SuspectBody(body.length);
    lane.current = current;
    this.counts.exchanges += 1;
    current.request = new RepeatedRequest({
      client: this.client,
      clock: this.clock,
      times: this.times,
      body,
      smallBody: () => encodeExchange({ ...fields, answerLimit: Math.min(LEAST, answerLimit) }), // 7.5, 7.16
      maxOpen: MOST_OPEN,
      deadline: this.times.deadline + hold,
      attached: true,
      givesUp: !pull,
      isAnswer: (result) =>
        result.of === KIND.ANSWER && result.value.lane === lane.index && result.value.number === current.number,
      isFailure: (result) => result.kind === RESULT.TOO_LARGE && (pull || body.length <= LEAST), // 7.9
      done: (result, _, attempt) => {
        if (lane.current === current) this.done(lane, current, result, attempt);
      },
      failed: (why, _, unexplained) => this.failed(lane, current, why, unexplained),
    });
  }

  failed(lane, current, why, unexplained) {
    this.counts.repeats += 1;
    current.failedAge ??= this.clock.now() - current.startedAt;
    this.trouble(why);
    if (!current.suspect || !unexplained) return;
    current.suspect.failed();
    if (current.suspect.proven) {
      current.request.stop();
      this.refuse(lane, current, this.clock.now());
      this.wake();
    } else if (current.suspect.suspected) {
      this.probeSmall = true;
      this.wake();
    }
  }

  done(lane, current, result, attempt) {
    const now = this.clock.now();
    current.cancelEvidence?.();
    if (result.kind === RESULT.UNKNOWN || result.kind === RESULT.STALE)
      return this.reattach(result.kind === RESULT.STALE);
    if (result.kind === RESULT.FINAL) return this.fatal(result.why);
    if (result.kind === RESULT.TOO_LARGE) this.refuse(lane, current, now);
    else if (result.kind === RESULT.REFUSAL) this.abandon(lane, current, now);
    else {
      lane.current = null;
      this.answered(lane, current, result, attempt, now);
    }
    this.wake();
  }

  /** The body is too large for the path: lower the limit, and give up its batch (7.9). */
  refuse(lane, current, now) {
    this.bodies.tooLarge(current.size, now);
    this.abandon(lane, current, now);
  }

  /** Give up the batch of an exchange; the lane goes on with its next number (4.10, 7.9). */
  abandon(lane, current, now) {
    current.cancelEvidence?.();
    lane.current = null;
    current.batch?.lost(now);
    lane.giveUpPieces(now);
  }

  answered(lane, current, { value, flags }, attempt, now) {
    lane.serialReceived = value.serial;
    current.batch?.receipted(now);
    const size = value.packets.length;
    const more = (flags & FLAG.MORE) !== 0;
    this.moreWaits = more || size > this.answers.value / 2;
    if (current.hold === 0) this.measure(current, attempt, size, now);
    else this.learnHold(current, attempt, now);
    if (attempt.small && more && this.suspectAnswers.answeredSmall(current.startedAt, now))
      this.answers.tooLarge(current.answerLimit, now);
    if (size) this.hold.packetsCame();
    else if (current.hold) this.hold.nothingCame();
    this.tellOthers(current, attempt, value.evidence);
    if (flags & FLAG.PIECE) this.takePiece(lane, value, now);
    else if (size) {
      lane.incoming.clear(); // 7.6: whole packets end a packet that came in pieces
      this.endpoint.handleBatch(value.packets, now);
    }
  }

  /** The larger one of body and answer explains the time; two small ones show how long each of them waits. */
  measure(current, attempt, size, now) {
    const time = now - attempt.at;
    this.times.sample(time, now);
    this.held.answered(attempt.at, now);
    if (current.pull) this.held.pulled(size > 0);
    if (size <= Math.max(LEAST, current.size)) this.bodies.answered(current.size, time, now);
    if (current.size <= Math.max(LEAST, size)) this.answers.answered(size, time, now);
  }

  /** 7.15: a held pull counts as failed when its first repeat is answered. */
  learnHold(current, attempt, now) {
    if (current.hold < HELD) return;
    this.held.ended(current.startedAt, now);
    if (attempt.index === 1) this.hold.answered(now - current.startedAt);
    else if (attempt.index === 2) this.hold.failed(current.failedAge ?? attempt.at - current.startedAt);
  }

  takePiece(lane, value, now) {
    this.counts.pieces += 1;
    const whole = lane.incoming.take(value.pieceOffset, value.packets);
    if (whole) this.endpoint.handleBatch(whole, now);
  }

  /** What the answer to one exchange says about the others: 7.7, 7.8, 7.16. */
  tellOthers(answered, attempt, evidence) {
    for (const [index, highest] of evidence) {
      const current = this.lanes[index]?.current;
      if (current && current.number <= highest) this.repeatSoon(current);
    }
    for (const current of this.inFlight) {
      current.suspect?.otherPassed(answered.size);
      current.request.pathWorks(attempt.at);
      // 7.7: earlier attempts got no answer, so pulls that were held at that time may be lost in the same way
      const stale = current.hold >= HELD && current.startedAt < attempt.at;
      if (answered.request.missed && attempt.index > 1 && stale) this.repeatSoon(current);
    }
  }

  repeatSoon(current) {
    if (current.evident) return;
    current.evident = true;
    current.cancelEvidence = this.clock.after(this.times.soon, () => current.request.repeatNow());
  }
}
