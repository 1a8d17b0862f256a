// The attachment of an endpoint at its relay: ATTACH, generations, epochs (section 6).

import { KIND, encodeAttach } from '../wire/envelope.mjs';
import { RepeatedRequest } from './repeat.mjs';
import { RESULT } from './response.mjs';

const MOST_OPEN = 8; // 7.8
const LARGEST_BODY = 4 * 1024 * 1024;

export class Attachment {
  /** `attached(info, fresh)` follows each attach, `trouble(why)` each failure, `fatal(why)` a final failure. */
  constructor({ client, clock, identity, name, pullInterval, times, attached, fatal, trouble }) {
    Object.assign(this, { client, clock, identity, name, pullInterval, times, trouble });
    Object.assign(this, { onAttached: attached, onFatal: fatal });
    this.generation = 0;
    this.info = null;
    this.request = null;
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
    const fresh = this.info.fresh || (before !== null && !before.epoch.equals(this.info.epoch)); // 6.3
    this.onAttached(this.info, fresh);
  }

  stop() {
    this.request?.stop();
  }
}
