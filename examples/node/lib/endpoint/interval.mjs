// The pull interval of the attachment: OPTION with both ids 0, repeated until the relay answers it (2.7).

import { TYPE, encodePacket } from '../wire/packet.mjs';
import { encodeOption } from '../wire/payloads.mjs';

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 60_000;

export class PullInterval {
  /** `settled(ms)` is called with the interval that the relay has settled on. */
  constructor(settled) {
    this.settled = settled;
    this.version = 0;
    this.answered = true;
    this.owed = false;
    this.at = Infinity;
  }

  ask(pullInterval) {
    this.version += 1;
    this.payload = encodeOption({ version: this.version, options: { pullInterval } });
    Object.assign(this, { answered: false, owed: true, pause: FIRST_PAUSE, at: Infinity });
  }

  handle({ version, options }) {
    if (version !== this.version || this.answered) return;
    Object.assign(this, { answered: true, owed: false, at: Infinity });
    if (options.pullInterval !== undefined) this.settled(options.pullInterval);
  }

  due() {
    return this.owed;
  }

  *packets(now) {
    if (!this.owed) return;
    this.owed = false;
    this.at = now + this.pause;
    this.pause = Math.min(LONGEST_PAUSE, this.pause * 2);
    yield {
      bytes: encodePacket({ type: TYPE.OPTION, payload: this.payload }),
      lost: () => {
        this.owed = !this.answered;
      },
    };
  }

  nextTimeout() {
    return this.owed ? Infinity : this.at;
  }
  handleTimeout(now) {
    if (this.at <= now) this.owed = true;
  }
}
