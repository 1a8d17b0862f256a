// What a connection does with a packet that has come for it.

import { TYPE } from '../wire/packet.mjs';
import { Malformed } from '../wire/fields.mjs';
import {
  ABORT,
  ABORT_TEXT,
  DROP,
  decodeAbort,
  decodeAck,
  decodeDropped,
  decodeEdge,
  decodeEnd,
  decodeOptionPacket,
} from '../wire/payloads.mjs';
import { IntegrityError } from './receiver.mjs';

const LONGEST_PING = 64; // 1.5

/** A packet for connection `c`; the endpoint has checked its ids (3.8). */
export function arrive(c, packet, now) {
  try {
    dispatch(c, packet, now);
  } catch (error) {
    if (error instanceof Malformed) {
      c.malformed += 1; // 2.0: discarded and counted
    } else if (error instanceof IntegrityError) {
      c.abort(now, ABORT.INTEGRITY, error.message); // 5.1
    } else throw error;
  }
}

function dispatch(c, packet, now) {
  switch (packet.type) {
    case TYPE.DROPPED:
      return dropped(c, decodeDropped(packet.payload), now);
    case TYPE.EDGE:
      return c.sender.setEdge(decodeEdge(packet.payload));
    case TYPE.CONNECT:
    case TYPE.ACCEPTED:
    case TYPE.REJECTED:
      return c.opening.handle(packet, now);
    default:
      if (c.role === 'initiator' && c.state === 'connecting') return c.opening.hold(packet); // 3.7
      return fromPeer(c, packet, now);
  }
}

function fromPeer(c, packet, now) {
  c.heard(now);
  switch (packet.type) {
    case TYPE.DATA:
    case TYPE.FINISH:
    case TYPE.CLOSE:
    case TYPE.OPTION:
      return sequenced(c, packet, now);
    case TYPE.ACK:
      return acknowledgement(c, decodeAck(packet.payload), now);
    case TYPE.SHUTDOWN:
      return c.closing.handleShutdown(now);
    case TYPE.ABORT:
      return aborted(c, decodeAbort(packet.payload));
    case TYPE.PING:
      if (packet.payload.length <= LONGEST_PING) c.keepalive.pong = Buffer.from(packet.payload);
      return undefined;
    case TYPE.PROBE:
      c.receiver.ackNow = true;
      return undefined;
    default:
      return undefined; // PONG has been noted by heard(); NOOP says nothing
  }
}

function sequenced(c, packet, now) {
  const { receiver } = c;
  // A malformed packet is discarded here, before it could be acknowledged.
  if (packet.type === TYPE.OPTION) decodeOptionPacket(packet.payload);
  else if (packet.type !== TYPE.DATA) decodeEnd(packet.payload);
  const before = [receiver.received, receiver.finished, receiver.closed];
  receiver.handle(packet, now);
  for (const payload of receiver.options.splice(0)) option(c, decodeOptionPacket(payload));
  const after = [receiver.received, receiver.finished, receiver.closed];
  if (after.some((value, index) => value !== before[index])) c.event('readable');
  if (receiver.closed && !before[2]) c.closing.peerClosed(now);
}

function option(c, { version, options }) {
  if (version <= c.optionVersion) return; // 2.7
  c.optionVersion = version;
  c.applyPeerOptions(options);
}

function acknowledgement(c, ack, now) {
  if (c.sender.acknowledge(ack, now).malformed) {
    c.malformed += 1; // 4.4
    return;
  }
  c.keepalive.probeAnswered();
  c.confirming.check();
  c.event('writable');
  c.closing.check(now);
}

function aborted(c, { reason, text }) {
  const why = ABORT_TEXT[reason] ?? `reason ${reason}`;
  c.die(Object.assign(new Error(`the peer ended the connection: ${why}${text ? ` (${text})` : ''}`), { reason }));
}

/** 4.10 and 6.7. */
function dropped(c, { reason, first, last, limit }, now) {
  if (reason === DROP.NO_ROUTE) c.loseRoute(now);
  else if (reason === DROP.TOO_LARGE)
    c.abort(now, ABORT.PROTOCOL, `a packet was too large for the relay, which takes ${limit} bytes`);
  else if (reason === DROP.GONE) c.die(new Error('the peer is gone: the relay has lost its attachment'));
  else c.sender.dropped(first, last, now); // also for a reason that is not known (2.9)
}
