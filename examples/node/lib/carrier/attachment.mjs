// The attachment of an endpoint at its relay: ATTACH, generations, epochs (section 6).

import { KIND, encodeAttach } from '../wire/envelope.mjs';
import { RepeatedRequest } from './repeat.mjs';
import { RESULT } from './response.mjs';

const MOST_OPEN = 8; // 7.8
const MOST_RETURNS = 5; // to an epoch of the past, within RETURNS_WITHIN ms
const RETURNS_WITHIN = 60_000;
const LARGEST_BODY = 4 * 1024 * 1024;

export class Attachment {
  /** `attached(info, fresh)` follows each attach, `trouble(why)` each failure, `fatal(why)` a final failure. */
  constructor({ client, clock, identity, name, pullInterval, times, attached, fatal, trouble }) {
    Object.assign(this, { client, clock, identity, name, pullInterval, times, trouble });
    Object.assign(this, { onAttached: attached, onFatal: fatal });
    this.generation = 0;
    this.info = null;
    this.request = null;
    this.epochs = new Set(); // every epoch that an answer has named
    this.returns = []; // when an answer named an epoch of the past again
  }

  /** Attach, or attach again. After STATUS(stale) the generation more than doubles (7.10). */
  attach(stale = false) {
    this.request?.stop();
    this.generation = stale ? this.generation * 2 + 1 + Math.floor(Math.random() * 16) : this.generation + 1;
    const body = encodeAttach({
      secret: this.identity.secret,
      generation: this.generation,
      pullInterval: this.pullInterval,
      largestBody: LARGEST_BODY,
      name: this.name,
    });
    this.request = new RepeatedRequest({
      client: this.client,
      clock: this.clock,
      times: this.times,
      body,
      maxOpen: MOST_OPEN,
      deadline: this.times.deadline,
      attached: this.info !== null,
      isAnswer: (result) => result.of === KIND.ATTACHED && result.value.generation === this.generation,
      // 7.9: in answer to ATTACH, neither of these results is final
      isFailure: (result) => result.kind === RESULT.UNKNOWN || result.kind === RESULT.TOO_LARGE,
      done: (result, request, attempt) => this.answered(result, attempt),
      failed: (why) => this.trouble(why),
    });
  }

  answered(result, attempt) {
    this.request = null;
    if (result.kind === RESULT.STALE) return this.attach(true);
    if (result.kind !== RESULT.ANSWER) return this.onFatal(result.why);
    const now = this.clock.now();
    this.times.sample(now - attempt.at, now);
    const before = this.info;
    this.info = result.value;
    const other = before !== null && !before.epoch.equals(this.info.epoch);
    const fresh = this.info.fresh || other; // 6.3
    if (this.alternates(other, now))
      return this.onFatal('several relays answer at this address in turn', 'let each endpoint reach always the same one');
    this.onAttached(this.info, fresh);
  }

  /** Several relays at one address, none of which knows the attachments of the others: 6.3. */
  alternates(other, now) {
    const epoch = this.info.epoch.toString('hex');
    if (other && this.epochs.has(epoch)) this.returns.push(now);
    this.epochs.add(epoch);
    this.returns = this.returns.filter((at) => now - at < RETURNS_WITHIN);
    return this.returns.length >= MOST_RETURNS;
  }

  stop() {
    this.request?.stop();
  }
}
