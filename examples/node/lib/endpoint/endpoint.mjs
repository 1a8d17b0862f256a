// The protocol state of one process: all its connections and services. Like a connection it has no clock and no socket.

import { Connection } from '../connection/connection.mjs';
import { TYPE, encodePacket, parseBatch } from '../wire/packet.mjs';
import { Malformed } from '../wire/fields.mjs';
import { ABORT, decodeListenState, decodeOptionPacket, encodeAbort } from '../wire/payloads.mjs';
import { Accepting } from './accepting.mjs';
import { fillBatch } from './batching.mjs';
import { Identity, randomKey, randomU32 } from './identity.mjs';
import { PullInterval } from './interval.mjs';
import { Services } from './services.mjs';

const ID_REST = 4 * 60_000; // 3.1
const STRAY_ANSWERS = 64; // 3.9
const UNANSWERED = new Set([TYPE.ABORT, TYPE.REJECTED, TYPE.DROPPED, TYPE.EDGE, TYPE.NOOP, TYPE.PONG]);

export const DEFAULTS = Object.freeze({
  window: 1024 * 1024,
  largestPacket: 1024 * 1024,
  keepalive: 60_000,
  userTimeout: 300_000,
  pullInterval: 0,
  initialEdge: 256 * 1024,
  relayLargest: 1024 * 1024,
  batchPackets: 1024, // 4.13
  lanes: 2, // in use at present (4.8); carriers set it
});

export class Endpoint {
  constructor({ settings = {}, identity = new Identity(), random = randomU32, routeKey = randomKey } = {}) {
    this.identity = identity;
    this.random = random;
    this.routeKey = routeKey;
    this.settings = {
      ...DEFAULTS,
      ...settings,
      options() {
        const { largestPacket, keepalive, userTimeout, pullInterval } = this;
        return { versions: [1, 1], largestPacket, keepalive, userTimeout, pullInterval };
      },
    };
    this.connections = new Map();
    this.resting = new Map(); // ids that ended, and until when they are not used
    this.services = new Services();
    this.interval = new PullInterval((settled) => this.usePullInterval(settled));
    this.accepting = new Accepting(this);
    this.outbox = []; // packets that belong to no living connection: REJECTED, ABORT, SHUTDOWN
    this.strays = 0;
    this.over = []; // connections that were forgotten and have events left
    this.discarded = {};
  }

  count(reason, times = 1) {
    this.discarded[reason] = (this.discarded[reason] ?? 0) + times;
  }

  drawId() {
    for (;;) {
      const id = this.random();
      if (id && !this.connections.has(id) && !this.resting.has(id)) return id;
    }
  }

  add(connection) {
    this.connections.set(connection.id, connection);
    this.onConnection?.(connection);
  }

  open({ kind, host, port = 0 }, now) {
    const connection = new Connection(
      this.settings,
      {
        role: 'initiator',
        id: this.drawId(),
        initial: this.random(),
        routeKey: this.routeKey(),
        kind,
        host,
        port,
      },
      now,
    );
    this.connections.set(connection.id, connection);
    return connection;
  }

  /** The relay has answered ATTACH. `fresh`: it has no route of this endpoint (6.3). */
  attached(info, fresh, now) {
    this.settings.initialEdge = info.initialEdge;
    this.settings.relayLargest = info.largestPacket;
    this.settings.batchPackets = Math.min(info.mostPackets || 1024, 1024);
    this.usePullInterval(info.pullInterval);
    if (!fresh) return;
    for (const connection of this.connections.values()) connection.opening.freshAttach(now);
    this.services.announceAgain();
  }

  /** The relay has settled on a pull interval (2.7, 7.11). */
  usePullInterval(pullInterval) {
    this.settings.pullInterval = pullInterval;
    for (const connection of this.connections.values()) connection.tellPullInterval(pullInterval);
  }

  /** 4.15: the time for which the attachment is lost counts for the user timeout of every connection. */
  attachmentLost(now) {
    for (const connection of this.connections.values()) connection.attachmentLostSince ??= now;
  }
  attachmentBack() {
    for (const connection of this.connections.values()) connection.attachmentLostSince = null;
  }

  /** Returns the living connections, and the ended ones whose last events were not taken yet. */
  allConnections() {
    const over = this.over;
    this.over = over.filter((connection) => connection.events.length);
    return [...this.connections.values(), ...over];
  }

  // --- what arrives ---

  handleBatch(bytes, now) {
    const { packets, discarded } = parseBatch(bytes, this.settings.largestPacket);
    for (const [reason, times] of Object.entries(discarded)) this.count(reason, times);
    for (const packet of packets) {
      try {
        this.handlePacket(packet, now);
      } catch (error) {
        if (!(error instanceof Malformed)) throw error;
        this.count('malformed'); // 2.0
      }
    }
    return packets.length;
  }

  handlePacket(packet, now) {
    switch (packet.type) {
      case TYPE.LISTEN_STATE:
        return this.services.handle(decodeListenState(packet.payload));
      case TYPE.OPTION:
        if (packet.source || packet.destination) return this.handleOther(packet, now);
        return this.interval.handle(decodeOptionPacket(packet.payload));
      case TYPE.NOOP:
        return undefined;
      case TYPE.CONNECT:
        return this.accepting.handle(packet, now);
      case TYPE.ACCEPTED:
      case TYPE.REJECTED:
        return this.handleOpening(packet, now);
      default:
        return this.handleOther(packet, now);
    }
  }

  /** 3.8: ACCEPTED and REJECTED name the initiator's id as their source. */
  handleOpening(packet, now) {
    const connection = this.connections.get(packet.source);
    if (connection?.role !== 'initiator') {
      if (packet.type === TYPE.ACCEPTED) this.answerStray(packet, packet.source, packet.destination);
      return;
    }
    connection.handle(packet, now);
    if (connection.stray) this.answerStray(connection.stray, packet.source, packet.destination);
    this.sweep(connection, now);
  }

  handleOther(packet, now) {
    if (packet.destination === 0) return this.count('destination 0');
    const connection = this.connections.get(packet.destination);
    if (!connection) return this.answerStray(packet, packet.destination, packet.source);
    const fromRelay = packet.type === TYPE.DROPPED || packet.type === TYPE.EDGE;
    const expected = fromRelay ? 0 : connection.peerId;
    if (packet.source !== expected && (fromRelay || connection.peerId)) return this.count('wrong peer'); // 3.8
    connection.handle(packet, now);
    this.sweep(connection, now);
  }

  /** Answer a packet for an id that does not exist (3.9, 5.7). */
  answerStray(packet, source, destination) {
    if (this.strays >= STRAY_ANSWERS || UNANSWERED.has(packet.type)) return;
    if (packet.type === TYPE.SHUTDOWN) {
      if (packet.attempt > 0) this.postStray(encodePacket({ type: TYPE.SHUTDOWN, source, destination }));
      return;
    }
    const payload = encodeAbort({ reason: ABORT.NO_CONNECTION });
    this.postStray(encodePacket({ type: TYPE.ABORT, source, destination, payload }));
  }

  postStray(bytes) {
    this.strays += 1;
    this.outbox.push({
      bytes,
      taken: () => {
        this.strays -= 1;
      },
    });
  }

  /** Send a packet that belongs to no connection. With `again`, it is sent again when its batch is given up (4.10). */
  post(bytes, again = false) {
    const item = { bytes };
    if (again) item.lost = () => this.outbox.push(item);
    this.outbox.push(item);
  }

  /** Forget a connection that is over, and send its ABORT once. */
  sweep(connection, now) {
    if (!connection.dead || !this.connections.has(connection.id)) return;
    if (connection.farewell) this.post(connection.packet(TYPE.ABORT, encodeAbort(connection.farewell)));
    this.connections.delete(connection.id);
    this.over.push(connection);
    this.accepting.forget(connection, now);
    for (const [id, until] of this.resting) if (until <= now) this.resting.delete(id);
    this.resting.set(connection.id, now + ID_REST);
  }

  sweepAll(now) {
    for (const connection of this.connections.values()) this.sweep(connection, now);
  }

  // --- what leaves ---

  hasWork(now) {
    if (this.outbox.length || this.services.due() || this.interval.due()) return true;
    for (const connection of this.connections.values())
      if (connection.hasControl(now) || connection.hasData()) return true;
    return false;
  }

  /** A batch of at most `limit` bytes, or null. One packet alone may be larger: the carrier cuts it (7.6). */
  fill(limit, now) {
    const batch = fillBatch(this, limit, now);
    this.sweepAll(now);
    return batch;
  }

  // --- time ---

  nextTimeout(now) {
    let next = Math.min(this.services.nextTimeout(), this.interval.nextTimeout());
    for (const connection of this.connections.values()) next = Math.min(next, connection.nextTimeout(now));
    return next;
  }

  handleTimeout(now) {
    this.services.handleTimeout(now);
    this.interval.handleTimeout(now);
    for (const connection of this.connections.values()) {
      connection.handleTimeout(now);
      this.sweep(connection, now);
    }
  }
}
