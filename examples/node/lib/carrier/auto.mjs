// The carrier "auto": a link where one opens and works, and exchanges wherever it does not (8.0).

import { PollCarrier } from './poll.mjs';
import { Road } from './road.mjs';

export class AutoCarrier {
  /** The same options as PollCarrier. */
  constructor(options) {
    this.poll = new PollCarrier(options);
    this.road = new Road({ ...options, exchanges: this.poll });
  }

  get counts() {
    return { ...this.poll.counts, ...this.road.counts };
  }
  get busy() {
    return this.poll.busy || (this.road.link?.outstanding.length ?? 0) > 0;
  }

  start(info) {
    this.poll.start(info);
    this.road.start(info);
  }

  stop() {
    this.road.stop();
    this.poll.stop();
  }

  pump(now) {
    this.poll.resting = this.road.usable !== null;
    this.poll.endpoint.settings.lanes = this.poll.resting ? 1 : this.poll.lanes.length; // 4.8
    this.poll.noHold = this.road.noHold;
    this.road.pump(now);
    this.poll.pump(now);
  }
}
