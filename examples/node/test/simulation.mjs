// Two endpoints and a network between them that loses, repeats, delays and reorders. A seed decides about all of this,
// and time is simulated.

import { Endpoint } from '../lib/endpoint/endpoint.mjs';
import { UP } from '../lib/endpoint/services.mjs';
import { parseBatch } from '../lib/wire/packet.mjs';
import { TARGET } from '../lib/wire/payloads.mjs';

const INFO = { initialEdge: 256 * 1024, largestPacket: 1024 * 1024, lanes: 4, pullInterval: 0 };
const BATCH = 16 * 1024;
const MOST_BATCHES = 6;

/** mulberry32: small, and the same everywhere. */
export function generator(seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const random = {
    next,
    below: (n) => Math.floor(next() * n),
    u32: () => Math.floor(next() * 4294967296),
    chance: (p) => next() < p,
  };
  random.bytes = (n) => {
    const b = Buffer.alloc(n);
    for (let i = 0; i < n; i += 1) b[i] = random.below(256);
    return b;
  };
  return random;
}

/** Simulated time, and a queue of actions ordered by their times. */
class Clock {
  constructor() {
    this.now = 0;
    this.queue = [];
    this.order = 0;
  }

  after(delay, action) {
    this.queue.push({ at: this.now + delay, order: (this.order += 1), action });
  }

  step(until) {
    let first = null;
    for (const entry of this.queue)
      if (!first || entry.at < first.at || (entry.at === first.at && entry.order < first.order)) first = entry;
    if (!first || first.at > until) {
      this.now = until;
      return;
    }
    this.queue.splice(this.queue.indexOf(first), 1);
    this.now = first.at;
    first.action();
  }
}

class Party {
  constructor(network, settings, random) {
    this.network = network;
    this.endpoint = new Endpoint({
      settings,
      random: () => (random.chance(0.2) ? 0xffffffff - random.below(20) : random.u32()),
      routeKey: () => random.bytes(16),
    });
    this.endpoint.attached(INFO, true, 0);
    this.outstanding = new Set();
    this.received = [];
    this.log = [];
  }

  now() {
    return this.network.clock.now;
  }

  pump() {
    const { clock } = this.network;
    this.endpoint.handleTimeout(clock.now);
    this.application?.();
    while (this.outstanding.size < MOST_BATCHES && this.endpoint.hasWork(clock.now)) {
      const batch = this.endpoint.fill(BATCH, clock.now);
      if (!batch?.items.length) break;
      this.outstanding.add(batch);
      this.network.carry(this, batch);
    }
  }
}

export class Network {
  constructor(seed, faults) {
    this.random = generator(seed);
    this.clock = new Clock();
    this.faults = faults;
    this.era = 0; // counts the restarts of the relay
  }

  join(settings) {
    return new Party(this, settings, this.random);
  }

  delay() {
    return 5 + this.random.next() * this.faults.jitter;
  }

  /** Give the batch up, or report its receipt. Each packet arrives by itself, perhaps also of a batch given up. */
  carry(from, batch) {
    const { random, clock, faults, era } = this;
    if (random.chance(faults.givenUp)) {
      clock.after(this.delay(), () => {
        if (from.outstanding.delete(batch)) batch.lost(clock.now);
      });
      if (random.chance(0.5)) return;
    } else
      clock.after(this.delay(), () => {
        if (from.outstanding.delete(batch)) batch.receipted(clock.now);
      });
    for (const packet of batch.packets) {
      if (random.chance(faults.lost)) continue;
      const copies = random.chance(faults.twice) ? 2 : 1;
      for (let copy = 0; copy < copies; copy += 1) {
        const bytes = Buffer.from(packet);
        if (random.chance(faults.damaged)) bytes[random.below(bytes.length)] ^= 1 << random.below(8);
        clock.after(this.delay() * 2, () => {
          if (this.era === era) from.other.endpoint.handleBatch(bytes, clock.now);
        });
      }
    }
  }

  /** The relay dies with everything that it holds; both attach again and are told that they are fresh. */
  restart(parties) {
    this.era += 1;
    for (const party of parties) {
      for (const batch of party.outstanding) batch.lost(this.clock.now);
      party.outstanding.clear();
      party.endpoint.attached(INFO, true, this.clock.now);
    }
  }

  run(parties, until, done) {
    while (this.clock.now < until) {
      for (const party of parties) party.pump();
      if (done()) return true;
      const next = Math.min(until, ...parties.map((party) => party.endpoint.nextTimeout(this.clock.now)));
      this.clock.step(Math.max(next, this.clock.now + 0.01));
    }
    return false;
  }
}

/**
 * Two endpoints on a quiet network with one open connection between them. `seen` lists the packets that have left:
 * {type, attempt, payload, at, from, batch}.
 */
export function pair(windowOfAcceptor) {
  const network = new Network(1, { givenUp: 0, lost: 0, twice: 0, damaged: 0, jitter: 5 });
  const [a, b] = [network.join({}), network.join({ window: windowOfAcceptor ?? 1024 * 1024 })];
  a.other = b;
  b.other = a;
  b.endpoint.services.announce('s', UP, 8);
  Object.assign(b.endpoint.services.get('s'), { answered: true, owed: false });
  const seen = [];
  const carry = network.carry.bind(network);
  network.carry = (from, batch) => {
    const at = network.clock.now;
    for (const bytes of batch.packets) seen.push({ ...parseBatch(bytes).packets[0], at, from, batch });
    carry(from, batch);
  };
  const opened = a.endpoint.open({ kind: TARGET.SERVICE, host: 's' }, 0);
  const run = (until, done = () => false) => network.run([a, b], until, done);
  run(1000);
  const [accepted] = b.endpoint.connections.values();
  return { network, a, b, opened, accepted, seen, run };
}

/** Write `data` in parts, read everything (sometimes slowly), and end as `manner` says. */
export function application(party, connection, data, manner, random) {
  let written = 0;
  let finished = false;
  // Some endpoints acknowledge a FINISH or CLOSE selectively before they can verify it.
  if (random.chance(0.5))
    connection.receiver.kept = function kept() {
      return [...this.ahead.values()];
    };
  return () => {
    for (const name of connection.events.splice(0)) party.log.push(name);
    while (written < data.length && connection.writable && !connection.dead) {
      const part = data.subarray(written, written + 1 + random.below(20_000));
      connection.write(part);
      written += part.length;
    }
    if (written === data.length && !finished && manner !== 'close after the peer') {
      finished = true;
      connection.finish();
    }
    if (random.chance(0.3)) return; // a slow reader
    for (;;) {
      const bytes = connection.read(party.now());
      if (!bytes) break;
      party.received.push(bytes);
    }
    if (connection.atEnd && written === data.length) connection.close(party.now());
  };
}

/** Run one whole connection; returns its outcome. */
export function transfer(seed, { faults, restarts = 0, size = 60_000, until = 1_500_000 }) {
  const network = new Network(seed, faults);
  const { random } = network;
  const settings = () => ({ window: 8192 + random.below(100_000), largestPacket: 65_536 });
  const [a, b] = [network.join(settings()), network.join(settings())];
  a.other = b;
  b.other = a;
  const data = [random.bytes(random.below(size)), random.bytes(random.below(size))];
  const manners = ['finish', random.chance(0.5) ? 'finish' : 'close after the peer'];
  b.endpoint.services.announce('s', UP, 8);
  b.endpoint.services.get('s').answered = true;
  b.endpoint.services.get('s').owed = false;
  let accepted = null;
  b.endpoint.onConnection = (connection) => {
    accepted = connection;
    b.application = application(b, connection, data[1], manners[1], random);
  };
  const opened = a.endpoint.open({ kind: TARGET.SERVICE, host: 's' }, 0);
  a.application = application(a, opened, data[0], manners[0], random);
  for (let i = 0; i < restarts; i += 1) network.clock.after(50 + random.below(4000), () => network.restart([a, b]));
  const done = () => !a.endpoint.connections.size && !b.endpoint.connections.size && accepted;
  const over = network.run([a, b], until, done);
  a.application();
  b.application?.();
  return {
    over,
    at: network.clock.now,
    data,
    received: [Buffer.concat(b.received), Buffer.concat(a.received)],
    opened,
    accepted,
    logs: [a.log, b.log],
  };
}
