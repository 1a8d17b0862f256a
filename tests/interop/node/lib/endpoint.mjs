// The protocol state of one process: its connections and services. Like a connection it has no clock and no socket.
import { createHash, randomBytes } from 'node:crypto';
import { Accepting, Acceptor } from './acceptor.mjs';
import { Malformed } from './fields.mjs';
import { Initiator } from './initiator.mjs';
import { Repeat } from './repeat.mjs';
import { ABORT, HEADER, PAYLOAD, TYPE, encodePacket, parseBatch } from './wire.mjs';
const [ID_REST, STRAY_ANSWERS] = [4 * 60_000, 64]; // 3.1, 3.9
const UNANSWERED = new Set([TYPE.ABORT, TYPE.REJECTED, TYPE.DROPPED, TYPE.EDGE, TYPE.NOOP, TYPE.PONG]);
const CONTROL_ROOM = 1024; // no control packet is larger
const RESERVED = 16; // packets of a batch: no connection has more control packets to send at once
const LARGEST_PAYLOAD = 8 * 1024; // an eighth of a body (4.13): no packet ever needs to be sent in pieces
const SIZES = { window: 1 << 20, largestPacket: 1 << 20, relayLargest: 1 << 20, initialEdge: 1 << 18 };
const DEFAULTS = { ...SIZES, batchPackets: 1024, keepalive: 60_000, userTimeout: 300_000, pullInterval: 0 };
const randomU32 = () => randomBytes(4).readUInt32BE(0);

export class Endpoint {
  constructor(settings = {}) {
    this.secret = randomBytes(32);
    this.id = createHash('sha256').update('tunnel attachment 1').update(this.secret).digest().subarray(0, 16); // 6.1
    this.settings = { ...DEFAULTS, ...settings };
    Object.defineProperty(this.settings, 'options', { get() { return { ...this, versions: [1, 1] }; } });
    Object.assign(this, { connections: new Map(), services: new Map() });
    this.resting = new Map(); // ids that ended, and until when they are not used
    // What is said to the relay until it answers (2.7, 2.8): {type, version, repeat, values, answered(values)}
    const answered = ({ options }) => Object.assign(this.settings, options);
    this.interval = { type: TYPE.OPTION, version: 0, repeat: new Repeat(), answered };
    this.accepting = new Accepting(this);
    Object.assign(this, { strays: 0, discarded: 0, outbox: [] }); // items that belong to no living connection
  }
  identity() {
    let id = 0;
    while (!id || this.connections.has(id) || this.resting.has(id)) id = randomU32();
    return { id, initial: randomU32(), endpointId: this.id };
  }
  add(connection) { this.connections.set(connection.id, connection); return connection; }
  open(target, now) {
    return this.add(new Initiator(this.settings, { ...this.identity(), ...target, routeKey: randomBytes(16) }, now));
  }
  accept(connect, packet, key, now) {
    const connection = new Acceptor(this.settings, { ...this.identity(), key }, now, { connect, packet });
    this.onConnection(connection);
    return this.add(connection);
  }
  announce(name, state, answered = undefined) {
    const service = this.services.get(name) ?? { type: TYPE.LISTEN_STATE, version: 0, repeat: new Repeat(), answered };
    service.values = { state, backlog: 64, name };
    this.services.set(name, service);
    this.say(service);
  }
  say(one) { one.version += 1; one.repeat.start(1000); }
  get said() { return [this.interval, ...this.services.values()]; }
  /** The relay has answered ATTACH. `fresh`: it has no route of this endpoint (6.3). */
  attached({ initialEdge, largestPacket: relayLargest, mostPackets, pullInterval }, fresh, now) {
    const batchPackets = Math.min(mostPackets || 1024, 1024);
    Object.assign(this.settings, { initialEdge, relayLargest, pullInterval, batchPackets });
    for (const connection of this.connections.values()) connection.attachmentLostSince = null;
    if (!fresh) return;
    for (const connection of this.connections.values()) connection.freshAttach(now);
    for (const service of this.services.values()) this.say(service);
  }
  attachmentLost(now) { for (const connection of this.connections.values()) connection.attachmentLostSince ??= now; }
  handleBatch(bytes, now) {
    const { packets, discarded } = parseBatch(bytes, this.settings.largestPacket);
    this.discarded += discarded.length;
    for (const packet of packets) {
      try {
        this.handlePacket(packet, now);
      } catch (error) {
        if (!(error instanceof Malformed)) throw error;
        this.discarded += 1; // 2.0
      }
    }
    this.sweep(now);
  }
  handlePacket(packet, now) {
    const { type, source, destination, payload } = packet;
    if (type === TYPE.NOOP) return undefined;
    if (type === TYPE.CONNECT) return this.accepting.handle(packet, now);
    if (type === TYPE.LISTEN_STATE || (type === TYPE.OPTION && !source && !destination)) {
      const values = PAYLOAD[type].decode(payload);
      const one = type === TYPE.OPTION ? this.interval : this.services.get(values.name);
      if (!one?.repeat.running || values.version !== one.version) return undefined;
      one.repeat.stop();
      return one.answered?.(values);
    }
    const opening = type === TYPE.ACCEPTED || type === TYPE.REJECTED; // 3.8: their source is the initiator's id
    const connection = this.connections.get(opening ? source : destination);
    if (!connection || (opening && !(connection instanceof Initiator))) return this.answerStray(packet);
    const fromRelay = type === TYPE.DROPPED || type === TYPE.EDGE;
    const expected = fromRelay ? 0 : connection.peerId || source; // unknown before ACCEPTED
    if (!opening && source !== expected) return (this.discarded += 1);
    connection.handle(packet, now);
    return connection.stray && this.answerStray(connection.stray);
  }
  /** Answer a packet for an id that does not exist (3.9, 5.7). */
  answerStray({ type, attempt, source, destination }) {
    const silent = UNANSWERED.has(type) || (type === TYPE.SHUTDOWN && !attempt) || !destination;
    if (silent || this.strays >= STRAY_ANSWERS) return;
    const ids = type === TYPE.ACCEPTED ? { source, destination } : { source: destination, destination: source }; // 2.2
    const abort = { type: TYPE.ABORT, values: { reason: ABORT.NO_CONNECTION } };
    this.strays += 1;
    this.post({ ...(type === TYPE.SHUTDOWN ? { type } : abort), ...ids }, false, () => (this.strays -= 1));
  }
  /** Send a packet that belongs to no connection. With `again`, it is sent again when its batch is given up (4.10). */
  post(packet, again = false, taken = undefined) {
    const item = { bytes: encodePacket(packet), taken };
    if (again) item.lost = () => this.outbox.push(item);
    this.outbox.push(item);
  }
  /** Forget the connections that are over, and send the ABORT of each once. */
  sweep(now) {
    for (const connection of this.connections.values()) {
      if (!connection.dead) continue;
      const { farewell: values, id: source, peerId: destination } = connection;
      if (values) this.post({ type: TYPE.ABORT, source, destination, values });
      this.connections.delete(source);
      this.accepting.forget(connection, now);
      for (const [old, until] of this.resting) if (until <= now) this.resting.delete(old);
      this.resting.set(source, now + ID_REST);
      connection.app?.update();
    }
  }
  *control(now) {
    while (this.outbox.length) yield this.outbox.shift();
    for (const { type, version, values, repeat } of this.said) {
      if (!repeat.owed) continue;
      repeat.sent(now);
      yield { bytes: encodePacket({ type, values: { ...values, version } }), lost: () => repeat.lost() };
    }
    for (const connection of this.connections.values()) yield* connection.control(now);
  }
  /** The items of a batch of at most `limit` bytes, in the order of 4.14. */
  fill(limit, now) {
    const items = [];
    let size = 0;
    const fits = (more) => size + more <= limit && items.length < this.settings.batchPackets - RESERVED;
    const add = (item) => { item.taken?.(); size += item.bytes.length; items.push(item); };
    const control = this.control(now);
    for (let item; fits(CONTROL_ROOM) && !(item = control.next()).done;) add(item.value);
    const most = Math.min(LARGEST_PAYLOAD, this.settings.relayLargest - HEADER);
    const addPacket = (connection) => { // false when there is none, or no room for it
      const again = connection.sender.again(); // lost packets go first
      if (connection.silent || !fits(HEADER + (again?.payload.length ?? most))) return false;
      const flight = again ?? connection.sender.nextNew(Math.min(most, connection.peerLargest - HEADER));
      if (flight) add(connection.dataItem(flight, now));
      return flight !== null;
    };
    let turns = [...this.connections.values()].filter(({ state }) => state === 'open');
    turns.sort((a, b) => a.sender.queued - b.sender.queued);
    while (turns.length) turns = turns.filter(addPacket);
    const [first] = this.connections.values();
    if (first && this.connections.delete(first.id)) this.add(first); // the next batch begins with another connection
    this.sweep(now);
    return items;
  }
  next(now) {
    const times = [...this.connections.values()].map((connection) => connection.next(now));
    return Math.min(Infinity, ...this.said.map(({ repeat }) => repeat.next), ...times);
  }
  handleTimeout(now) {
    for (const { repeat } of this.said) repeat.handleTimeout(now);
    for (const connection of this.connections.values()) connection.handleTimeout(now);
    this.sweep(now);
  }
}
