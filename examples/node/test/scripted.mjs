// A scripted relay on a simulated clock, for tests of carriers. Nothing here waits for real time.

import { EventEmitter } from 'node:events';
import { PollCarrier } from '../lib/carrier/poll.mjs';
import { ExchangeTime } from '../lib/carrier/smoothed.mjs';
import {
  EXCHANGE_HEADER,
  KIND,
  decodeAttach,
  decodeEnvelope,
  decodeExchange,
  encodeAnswer,
  encodeEnvelope,
} from '../lib/wire/envelope.mjs';
import { LINK_HEADER, decodeLinkHeader, encodeLinkHeader } from '../lib/wire/link-frame.mjs';
import { u16, u32 } from '../lib/wire/fields.mjs';

export class SimulatedClock {
  constructor() {
    this.time = 0;
    this.queue = [];
  }

  now() {
    return this.time;
  }

  after(delay, action) {
    const entry = { at: this.time + Math.max(0, delay), action };
    this.queue.push(entry);
    return () => {
      this.queue = this.queue.filter((one) => one !== entry);
    };
  }

  soon(action) {
    this.after(0, action);
  }

  /** Do everything that is due until `until`, in order. */
  run(until) {
    for (;;) {
      let first = null;
      for (const entry of this.queue) if (entry.at <= until && (!first || entry.at < first.at)) first = entry;
      if (!first) break;
      this.queue.splice(this.queue.indexOf(first), 1);
      this.time = Math.max(this.time, first.at);
      first.action();
    }
    this.time = until;
  }
}

/** Responses of a relay and of intermediaries. `after` is the time that the response takes. */
export const respond = {
  answer: ({ exchange }, { packets = [], flags = 0, evidence = [], serial = exchange.number, after = 20 } = {}) => ({
    after,
    status: 200,
    body: encodeAnswer({ lane: exchange.lane, number: exchange.number, serial, evidence, packets }, flags),
  }),
  status: (code, status, { retryAfter = 0, after = 20, headers } = {}) => ({
    after,
    status,
    headers,
    body: encodeEnvelope(KIND.STATUS, 0, [u16(code), u16(0), u32(retryAfter), u16(0)]),
  }),
  page: (status, { after = 20, headers } = {}) => ({ after, status, headers, body: Buffer.from('<html>') }),
  reset: (after = 20) => ({ after, error: new Error('reset') }),
};

/** Stands for HttpClient: `script(post)` returns the response to each POST, or null for silence. */
export class ScriptedClient {
  constructor(clock, script) {
    this.clock = clock;
    this.script = script;
    this.posts = [];
    this.upgrades = []; // functions (error, response) of the upgrades that were asked for
  }

  post(body, { fresh }, done) {
    const { kind, flags, content } = decodeEnvelope(body);
    const post = { at: this.clock.now(), size: body.length, masked: (flags & 1) === 1, flags, fresh, open: true };
    if (kind === KIND.EXCHANGE) post.exchange = decodeExchange(content);
    else post.attach = decodeAttach(content);
    this.posts.push(post);
    const response = this.script(post, this.posts);
    if (response)
      this.clock.after(response.after, () => {
        if (!post.open) return;
        post.open = false;
        if (response.error) done(response.error);
        else done(null, { ...response, headers: response.headers ?? {} });
      });
    return () => {
      post.open = false;
    };
  }

  upgrade(done) {
    this.upgrades.push(done);
    return () => {};
  }
}

export const INFO = Object.freeze({
  id: Buffer.alloc(16, 1),
  epoch: Buffer.alloc(8, 2),
  largestBody: 1024 * 1024,
  largestHold: 65_000,
  lanes: 8,
});

/** An endpoint whose work is a list of packets; it notes receipts and losses. */
export class ListedWork {
  constructor() {
    this.settings = { pullInterval: 0 };
    this.waiting = []; // packets
    this.receipted = [];
    this.lost = [];
    this.arrived = [];
  }

  hasWork() {
    return this.waiting.length > 0;
  }

  fill(limit) {
    const packets = [];
    let size = 0;
    while (this.waiting.length && (!packets.length || size + this.waiting[0].length <= limit)) {
      packets.push(this.waiting.shift());
      size += packets[packets.length - 1].length;
    }
    return {
      packets,
      size,
      items: packets,
      receipted: () => this.receipted.push(...packets),
      lost: () => {
        this.lost.push(...packets);
        this.waiting.push(...packets);
      },
    };
  }

  handleBatch(bytes) {
    this.arrived.push(bytes);
  }
}

/** What a carrier needs beside a client: {clock, endpoint, times, ...} and lists of what it reports. */
export function surroundings(script) {
  const clock = new SimulatedClock();
  const client = new ScriptedClient(clock, script);
  const reports = { fatal: [], reattach: [], trouble: [] };
  let carrier = null;
  let woken = false;
  const options = {
    clock,
    client,
    endpoint: new ListedWork(),
    attachment: { generation: 1 },
    times: new ExchangeTime(),
    wake() {
      if (woken) return;
      woken = true;
      clock.after(0, () => {
        woken = false;
        carrier.pump(clock.now());
      });
    },
    reattach: (stale) => reports.reattach.push(stale),
    fatal: (why) => reports.fatal.push(why),
    trouble: (why) => reports.trouble.push(why),
  };
  const start = (Carrier, info = INFO) => {
    carrier = new Carrier(options);
    carrier.start(info);
    options.wake();
    return carrier;
  };
  return { ...options, reports, start };
}

export function pollWith(script) {
  const around = surroundings(script);
  return { ...around, carrier: around.start(PollCarrier) };
}

export const PUSH_HEADER = EXCHANGE_HEADER;

/** Stands for the socket of a link: the test is the relay on its other side. */
export class LinkSocket extends EventEmitter {
  constructor(clock) {
    super();
    this.clock = clock;
    this.writableNeedDrain = false;
    this.destroyed = false;
    this.frames = []; // {at, number, received, length} of everything after the greeting
    this.greeted = false;
    this.batches = 0; // sent by the relay
  }

  write(bytes) {
    if (!this.greeted) {
      this.greeted = true;
      return;
    }
    this.frames.push({ at: this.clock.now(), ...decodeLinkHeader(bytes.subarray(0, LINK_HEADER)) });
    this.onFrame?.(this.frames[this.frames.length - 1]);
  }

  destroy() {
    this.destroyed = true;
  }

  /** The relay's answer to the first message. */
  accept() {
    this.emit('data', encodeAnswer({ lane: 0xffff, number: 0, serial: 0, evidence: [] }));
  }

  /** The relay confirms all batches up to `number`. */
  confirm(number) {
    this.emit('data', encodeLinkHeader(0, number, 0));
  }

  get newest() {
    return Math.max(0, ...this.frames.map((frame) => frame.number));
  }
}
