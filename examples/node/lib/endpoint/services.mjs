// The services of an endpoint: LISTEN_STATE and its repeats (2.8).

import { TYPE, encodePacket } from '../wire/packet.mjs';
import { encodeListenState } from '../wire/payloads.mjs';

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 60_000;
export const DOWN = 0;
export const UP = 1;

export class Services {
  constructor() {
    this.byName = new Map();
  }

  get(name) {
    return this.byName.get(name);
  }

  /** Announce `name` as up or down. `changed(state)` is called with each answer of the relay. */
  announce(name, state, backlog, changed) {
    const service = this.byName.get(name) ?? { name, version: 0 };
    Object.assign(service, { state, backlog, changed: changed ?? service.changed });
    this.byName.set(name, service);
    this.restart(service);
  }

  restart(service) {
    service.version += 1;
    Object.assign(service, { answered: false, owed: true, pause: FIRST_PAUSE, at: Infinity });
  }

  /** After a fresh attach the relay knows of no service (6.3). */
  announceAgain() {
    for (const service of this.byName.values()) this.restart(service);
  }

  handle({ version, state, name }) {
    const service = this.byName.get(name);
    if (!service || version !== service.version || service.answered) return;
    Object.assign(service, { answered: true, owed: false, at: Infinity });
    service.changed?.(state);
  }

  due() {
    for (const service of this.byName.values()) if (service.owed) return true;
    return false;
  }

  *packets(now) {
    for (const service of this.byName.values()) {
      if (!service.owed) continue;
      service.owed = false;
      service.at = now + service.pause;
      service.pause = Math.min(LONGEST_PAUSE, service.pause * 2);
      yield {
        bytes: encodePacket({ type: TYPE.LISTEN_STATE, payload: encodeListenState(service) }),
        lost: () => {
          service.owed = !service.answered;
        },
      };
    }
  }

  nextTimeout() {
    let next = Infinity;
    for (const service of this.byName.values())
      if (!service.answered && !service.owed) next = Math.min(next, service.at);
    return next;
  }

  handleTimeout(now) {
    for (const service of this.byName.values()) if (!service.answered && service.at <= now) service.owed = true;
  }
}
